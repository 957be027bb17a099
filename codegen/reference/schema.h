// A JSON Schema of op YAML, made from the tables that the reader goes through.
#pragma once

#include <string>

namespace shardgen {

/// The schema as text, draft 07, which editors understand. It accepts every file that reads without an error; what only a
/// check can find, such as a name that is no argument, passes.
std::string op_schema();

}  // namespace shardgen
