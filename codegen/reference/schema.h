// A JSON Schema of op YAML, made from the key tables of the reader.
#pragma once

#include <string>

namespace shardgen {

/// The schema as text, draft 07, which editors understand. It accepts every file that is read
/// without an error. Mistakes that only a check can find, such as a name that is not an argument,
/// pass.
std::string op_schema();

}  // namespace shardgen
