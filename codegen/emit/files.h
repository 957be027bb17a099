// Reads and writes files. Only files whose bytes change are written, each through a temporary file
// and a rename.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardgen {

/// Removes temporary files in `directory` that killed runs have left, of files for whose names
/// `is_ours` is true. Does nothing while a run writes there.
void remove_abandoned(const std::string& directory, const std::function<bool(const std::string&)>& is_ours);
/// Writes every file (name -> bytes) into `directory` and returns how many had other bytes before;
/// on failure returns nothing and sets `problem`. All temporary files are written before the first
/// rename, so that a full disk changes nothing. A link is followed, and something that is not a
/// regular file is never replaced. Temporary files of killed runs are removed.
std::optional<size_t> write_files(const std::string& directory, const std::map<std::string, std::string>& files,
                                  std::string& problem);
/// Writes one file in the same way.
bool write_file(const std::string& path, const std::string& bytes, std::string& problem);

}  // namespace shardgen
