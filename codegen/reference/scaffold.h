// The files that a new op needs besides its YAML, as skeletons that compile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/template_data.h"

namespace shardgen {

struct Scaffold {
  std::map<std::string, std::string> files;  // name -> bytes
  std::vector<std::string> next;             // remaining work, a sentence each
  std::vector<std::string> problems;         // of templates
};

/// The project for which skeletons are written.
struct ScaffoldPlace {
  std::string header;  // the name of the op's family, or of its part
  // for the runtime itself, whose kernels and tests have places of their own; else for a project
  // that links it
  bool in_library = false;
};

/// The skeletons that a generated op needs and the runtime lacks.
Scaffold scaffold(const LowerContext& context, const Op& op, const ScaffoldPlace& place);

}  // namespace shardgen
