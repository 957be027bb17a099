// `shardgen scaffold`: writes skeletons of what a new op needs.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

struct ScaffoldOptions : InputOptions {
  std::string op;
  bool missing = false;  // no single op: what the runtime lacks for all of them
  std::string out;
  bool force = false;
};

int run_scaffold(const ScaffoldOptions& options);
std::function<int()> add_scaffold(CLI::App& app);

}  // namespace shardgen
