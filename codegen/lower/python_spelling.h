// Spells types and constants in Python, as stubs and messages have them, and is the only file that does.
#pragma once

#include <string>
#include <string_view>

#include "model/op.h"

namespace shardgen {

/// A name that Python accepts: with "_" appended where it is a keyword.
std::string python_name(const std::string& name);
/// "Tensor", "Sequence[Tensor]", "Tensor | None"
std::string python_type(const Input& input, bool optional);
/// "int | Sequence[int]"
std::string python_type(const Op& op, const Attr& attr);
/// The default of an attribute, which has one: "None", "(1, 2)", "'float32'".
std::string python_default(const Attr& attr);
/// The text as the inside of a C++ string literal.
std::string in_quotes(std::string_view text);

}  // namespace shardgen
