// Programs as files: JSON of a version, all of which is checked when it is read (docs/programs_files.md).
#pragma once

#include <string>
#include <string_view>

#include "program/scope.h"
#include "program/trace.h"

namespace shard::program {

/// What the files say that they are, and the newest version that this library reads; it writes that one.
inline constexpr std::string_view kFileFormat = "shard.program";
inline constexpr int kFileVersion = 1;

/// Values of parameters are not in the text, nor are the lines of the source that ops were called from. Throws invalid_argument for what a
/// file cannot hold: two parameters of one name, names that are not UTF-8.
std::string to_json(const Trace& trace);
/// The program of such a text. Its parameters are the tensors of these names in `scope`, or the gradients of such. Throws invalid_argument for
/// any text that is no consistent program, with the place (a JSON pointer, or the byte where it is no JSON) and what was expected there.
Trace from_json(std::string_view text, const Scope& scope);

/// The same in a file, which is there whole or as it was before. Errors begin with the path.
void save(const Trace& trace, const std::string& path);
Trace load(const std::string& path, const Scope& scope);

}  // namespace shard::program
