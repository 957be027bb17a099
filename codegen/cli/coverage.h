// `shardgen coverage`: prints how each op is placed on a mesh.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

struct CoverageOptions : InputOptions {
  std::string runtime;  // a description, or empty for the built-in one
};

int run_coverage(const CoverageOptions& options);
std::function<int()> add_coverage(CLI::App& app);

}  // namespace shardgen
