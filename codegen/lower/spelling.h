// Spells types, roles and constants in C++, and is the only file that does. Names of the runtime
// are symbols (rt()).
#pragma once

#include <optional>
#include <string>

#include "model/op.h"

namespace shardgen {

/// The kind of function for which an argument is spelled.
enum class Role { api, dense, kernel };

/// True for an attribute that a caller may leave open: a DataType with default UNDEFINED, or a
/// Place with default {} where the kernel's backend has an alternative to it.
bool may_be_open(const Op& op, const Attr& attr);

/// "const Tensor&"; `written`: the argument is written in place.
std::string input_type(const Input& input, Role role, bool written);
std::string attr_type(const Op& op, const Attr& attr);
/// The type of a variable that holds it: "IntArray", "std::optional<DType>".
std::string attr_value_type(const Op& op, const Attr& attr);
/// The type of a value that a function returns, or of the output argument of a kernel.
std::string output_type(const Output& output, Role role);
/// "std::vector<T>"
std::string list_of(const std::string& type);
/// "std::tuple<A, B>", a single type unchanged, or "void".
std::string tuple_of(const std::vector<std::string>& types);
/// The parameter type of infer_meta for an argument: "const Meta&", or "const Meta*" for one that
/// may be absent.
std::string meta_input_type(const Input& input, bool optional);
/// "Meta" or "std::vector<Meta>"
std::string meta_type(const Output& output);

/// The C++ default argument of an attribute, or nothing when C++ cannot express it.
std::optional<std::string> default_argument(const Op& op, const Attr& attr);
/// A constant without context, or nothing when C++ cannot express it.
std::optional<std::string> spell(const Literal& literal);
/// A constant passed to a parameter of that attribute's type.
std::optional<std::string> constant(const Op& target, const Attr& parameter, const Literal& literal);
/// The runtime's spelling of a dtype that it has.
std::string data_type(DataType type);

}  // namespace shardgen
