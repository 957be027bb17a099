// `shardgen schema`: prints the JSON Schema of op YAML.
#pragma once

#include "cli/command.h"

namespace shardgen {

std::function<int()> add_schema(CLI::App& app);

}  // namespace shardgen
