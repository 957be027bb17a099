// The pipeline from families to files.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lower/support.h"
#include "lower/template_data.h"
#include "model/op.h"

namespace shardgen {

/// A family with more ops than this is split into parts.
inline constexpr int kOpsPerPart = 128;

struct GenerateRequest {
  const Runtime& runtime;
  const std::map<std::string, std::string>& templates;
  std::string umbrella;  // the name of the header that includes all others; "api.h" goes with "python/api.cc"
  const std::map<std::string, int>& parts;  // fixes the number of parts of families, by name
  std::set<const Op*> refused;              // ops with errors, which are left out
  int jobs = 1;                             // threads
  /// Called after each file, from any thread.
  std::function<void(size_t done, size_t total)> progress = nullptr;
};

struct Generated {
  std::map<std::string, std::string> files;  // name -> bytes, without the manifest
  size_t ops = 0;
  std::vector<Dropped> dropped;
  // problems of templates or of the runtime; `files` is empty if there are any
  std::vector<std::string> problems;
};

/// Renders the files of all families that are not imported, and the header that includes theirs.
/// Ops that are not refused have no errors; those that need something that the runtime lacks are
/// dropped. The result is the same for any number of jobs.
Generated generate(const std::vector<Family>& families, const GenerateRequest& request);

/// The names of the files of a family with that number of parts, in a fixed order.
std::vector<std::string> output_names(const std::string& family, int parts, const Runtime& runtime);
/// The names of the files that name all parts, the header first.
std::vector<std::string> umbrella_names(const std::string& header, const Runtime& runtime);
/// The parts of every family; an imported one has none.
std::vector<std::vector<Part>> split_families(const std::vector<Family>& families, const Selection& selection,
                                              const std::map<std::string, int>& fixed);
/// The number of parts of a family with `ops` ops in its file.
int count_parts(size_t ops);

}  // namespace shardgen
