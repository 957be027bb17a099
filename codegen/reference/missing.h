// Definitions of functions that generated code calls and the runtime lacks; they throw.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/template_data.h"

namespace shardgen {

struct MissingFunctions {
  std::string file;                   // C++ that defines them all
  size_t infer_meta = 0;              // the number of infer_meta functions
  size_t external = 0;                // the number of functions that `invoke` and `composite` name
  std::vector<std::string> problems;  // of the template
};

/// Definitions for the ops of all parts. Each function is defined once, however many ops call it.
MissingFunctions define_missing(const LowerContext& context);

}  // namespace shardgen
