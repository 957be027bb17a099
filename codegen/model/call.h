// Whether the arguments of a call fit the parameters of the op that is called.
#pragma once

#include <string_view>

#include "model/op.h"

namespace shardgen {

/// "Tensor[]", "int", ...
std::string_view kind_of(const Signature& signature, ArgRef arg);
/// What a call in `op` hands over, as a type of the language; empty for a constant and for a name that means nothing.
std::string_view type_of(const Op& op, const CallArg& arg);
/// The number of leading arguments that a caller must give.
size_t required_args(const Signature& signature);
/// True when that argument is of a type that the parameter takes. Constants are asked about in check/defaults.cc.
bool fits_parameter(const Op& op, const CallArg& arg, const Signature& target, ArgRef parameter);
/// True when the number of arguments and their types fit.
bool call_fits(const Op& op, const Call& call, const Signature& target);

}  // namespace shardgen
