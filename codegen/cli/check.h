// `shardgen check`: reports findings and writes nothing.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

struct CheckOptions : InputOptions {
  std::string runtime;  // a description, or empty for the built-in one
};

int run_check(const CheckOptions& options);
std::function<int()> add_check(CLI::App& app);

}  // namespace shardgen
