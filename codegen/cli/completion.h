// `shardgen completion`: prints a completion script for a shell.
#pragma once

#include "cli/command.h"

namespace shardgen {

std::function<int()> add_completion(CLI::App& app);

}  // namespace shardgen
