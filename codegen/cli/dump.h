// `shardgen dump`: prints the model as JSON.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

/// Findings of the checks are not reported: the model is printed as it was read.
int run_dump(const InputOptions& options);
std::function<int()> add_dump(CLI::App& app);

}  // namespace shardgen
