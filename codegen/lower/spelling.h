// How types, roles and constants are written in C++: the only place that knows. What is of the runtime is a symbol (rt()).
#pragma once

#include <optional>
#include <string>

#include "model/op.h"

namespace shardgen {

/// For which function an argument is spelled.
enum class Role { api, dense, kernel };

/// True for an attribute that a caller may leave open: a DataType with default UNDEFINED, or a Place with default {} where
/// the kernel's backend has an alternative to it.
bool may_be_open(const Op& op, const Attr& attr);

/// "const Tensor&"; `written`: the argument is written in place.
std::string input_type(const Input& input, Role role, bool written);
std::string attr_type(const Op& op, const Attr& attr);
/// The type of a value that a function returns, or (kernel) of the argument that it writes.
std::string output_type(const Output& output, Role role);
/// "std::vector<T>"
std::string list_of(const std::string& type);
/// "std::tuple<A, B>", a single type as it is, or "void".
std::string tuple_of(const std::vector<std::string>& types);
/// What infer_meta gets for an argument: "const Meta&", or "const Meta*" for one that may be absent.
std::string meta_input_type(const Input& input, bool optional);
/// "Meta" or "std::vector<Meta>"
std::string meta_type(const Output& output);

/// The C++ default argument of an attribute, or nothing when C++ cannot say it.
std::optional<std::string> default_argument(const Op& op, const Attr& attr);
/// A constant by itself, or nothing when C++ cannot say it.
std::optional<std::string> spell(const Literal& literal);
/// A constant passed to a parameter of that attribute's type.
std::optional<std::string> constant(const Op& target, const Attr& parameter, const Literal& literal);
/// How the runtime writes a dtype, for one that it has.
std::string data_type(DataType type);

}  // namespace shardgen
