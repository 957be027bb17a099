// The definitions that generated code lacks: what the runtime does not have, as functions that throw.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/view.h"

namespace shardgen {

struct MissingFunctions {
  std::string file;                   // C++ that defines them all
  size_t infer_meta = 0;              // how many infer_meta functions there are
  size_t external = 0;                // and how many that `invoke` and `composite` name
  std::vector<std::string> problems;  // of the template
};

/// Definitions for the ops of all parts. Each function is defined once, however many ops call it.
MissingFunctions define_missing(const LowerContext& context);

}  // namespace shardgen
