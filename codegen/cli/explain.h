// `shardgen explain`: prints the facts about one op.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

struct ExplainOptions : InputOptions {
  std::string op;
};

int run_explain(const ExplainOptions& options);
std::function<int()> add_explain(CLI::App& app);

}  // namespace shardgen
