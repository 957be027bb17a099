// `shardgen dump`: prints the model as JSON.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

/// Findings of the checks are not reported: what the YAML says is printed as it is.
int run_dump(const InputOptions& options);
std::function<int()> add_dump(CLI::App& app);

}  // namespace shardgen
