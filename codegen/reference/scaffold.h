// The files that a new op needs besides its YAML, as skeletons that compile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/view.h"

namespace shardgen {

struct Scaffold {
  std::map<std::string, std::string> files;  // name -> bytes
  std::vector<std::string> next;             // what is left to do, a sentence each
  std::vector<std::string> problems;         // of templates
};

/// The skeletons of an op that is generated, of what the runtime does not have. `header` is the name of its family's part.
Scaffold scaffold(const LowerContext& context, const Op& op, const std::string& header);

}  // namespace shardgen
