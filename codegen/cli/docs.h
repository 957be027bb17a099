// `shardgen docs`: writes the reference of all ops as an HTML page.
#pragma once

#include "cli/inputs.h"

namespace shardgen {

struct DocsOptions : InputOptions {
  std::string out;
};

int run_docs(const DocsOptions& options);
std::function<int()> add_docs(CLI::App& app);

}  // namespace shardgen
