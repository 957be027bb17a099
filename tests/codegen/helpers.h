// Helpers for the tests of the generator.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "check/check.h"
#include "diag/diagnostics.h"
#include "read/read_file.h"
#include "support/source_dir.h"
#include "support/temp_folder.h"

namespace shardgen::testing {

inline std::string source_path(const std::string& path) { return shard::test::source_dir() + "/" + path; }

inline std::string slurp(const std::string& path) { return read_bytes(path).value_or("cannot read " + path); }

/// Reads and checks one file's text under the name `test.yaml`.
inline Family read_text(const std::string& text, DiagnosticSink& sink, const std::string& name = "test.yaml") {
  std::vector<Family> families = {read_family(name, text, sink)};
  check_families(families, own_runtime(), sink);
  sink.sort({name});
  return families[0];
}

using shard::test::TempFolder;

/// Every file of a folder by name.
inline std::map<std::string, std::string> read_folder(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder).generic_string()] = slurp(entry.path().string());
  }
  return files;
}

}  // namespace shardgen::testing
