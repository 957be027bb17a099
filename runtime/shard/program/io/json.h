// Program files: JSON with a version. Everything is checked when a file is read
// (docs/programs_files.md).
#pragma once

#include <string>
#include <string_view>

#include "shard/core/export.h"
#include "shard/program/capture/trace.h"
#include "shard/program/ir/scope.h"

namespace shard::program {

/// The format name in the files, and the newest version that this library reads. It writes that
/// version.
inline constexpr std::string_view kFileFormat = "shard.program";
inline constexpr int kFileVersion = 1;

/// The program as JSON text. It has neither the values of parameters nor the source lines that ops
/// were called from. Throws invalid_argument for what a file cannot hold: two parameters with the
/// same name, and names that are not UTF-8.
SHARD_API std::string to_json(const Trace& trace);
/// The program of such a text. Its parameters are the tensors of these names in `scope`, or
/// gradients of these tensors. For any text that is not a consistent program, throws
/// invalid_argument with the place (a JSON pointer, or the byte offset if it is not JSON) and what
/// was expected there.
SHARD_API Trace from_json(std::string_view text, const Scope& scope);

/// The same for a file. save() replaces the file atomically. Errors begin with the path.
SHARD_API void save(const Trace& trace, const std::string& path);
SHARD_API Trace load(const std::string& path, const Scope& scope);

}  // namespace shard::program
