// `shardgen scaffold`: writes skeletons of what a new op needs.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

struct ScaffoldOptions : InputOptions {
  std::string op;
  bool missing = false;  // no single op: everything that the runtime lacks for all of them
  std::string runtime;   // with `missing`: a description, or empty for the built-in one
  std::string out;
  bool force = false;
  bool keep_going = false;
};

int run_scaffold(const ScaffoldOptions& options);
std::function<int()> add_scaffold(CLI::App& app);

}  // namespace shardgen
