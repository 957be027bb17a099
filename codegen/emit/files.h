// Reads and writes files: only those whose bytes change are touched, each through a temporary file and a rename.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardgen {

/// Writes every file (name -> bytes) into `directory` and returns how many had other bytes before, or says in `problem` why not.
/// All temporary files are written before the first rename, so that a full disk changes nothing.
std::optional<size_t> write_files(const std::string& directory, const std::map<std::string, std::string>& files, std::string& problem);
/// Writes one file the same way.
bool write_file(const std::string& path, const std::string& bytes, std::string& problem);

}  // namespace shardgen
