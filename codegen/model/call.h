// Whether the arguments of a call fit the parameters of the op that is called.
#pragma once

#include <string_view>

#include "model/op.h"

namespace shardgen {

/// "Tensor[]", "int", ...
std::string_view kind_of(const Signature& signature, ArgRef arg);
/// The type, in the language of op YAML, of an argument that a call in `op` passes. Empty for a
/// constant and for an unknown name.
std::string_view type_of(const Op& op, const CallArg& arg);
/// The number of leading arguments that a caller must pass.
size_t required_args(const Signature& signature);
/// True when the argument has a type that the parameter accepts. check/defaults.cc checks
/// constants.
bool fits_parameter(const Op& op, const CallArg& arg, const Signature& target, ArgRef parameter);
/// True when the number of arguments and their types fit.
bool call_fits(const Op& op, const Call& call, const Signature& target);

}  // namespace shardgen
