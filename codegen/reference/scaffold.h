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

/// Where the skeletons are for.
struct ScaffoldPlace {
  std::string header;  // the name of the op's family, or of its part
  bool in_library =
      false;  // for the runtime itself, whose kernels and tests have places of their own; else for a project that links it
};

/// The skeletons of an op that is generated, of what the runtime does not have.
Scaffold scaffold(const LowerContext& context, const Op& op, const ScaffoldPlace& place);

}  // namespace shardgen
