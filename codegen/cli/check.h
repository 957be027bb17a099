// `shardgen check`: reports findings and writes nothing.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

int run_check(const InputOptions& options);
std::function<int()> add_check(CLI::App& app);

}  // namespace shardgen
