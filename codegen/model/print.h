// The model as YAML text again: to_string(parse(s)) == s for every signature in canonical spacing.
#pragma once

#include <string>

#include "model/op.h"

namespace shardgen {

/// "n - 1", the length of a list
std::string size_to_string(const std::vector<SizeTerm>& terms);
/// "(Tensor x, IntArray axis={})"
std::string args_to_string(const Signature& signature);
/// "Tensor(out), Tensor[](parts){n}"
std::string outputs_to_string(const Signature& signature);
/// "add(Tensor x, Tensor y) -> Tensor(out)"
std::string to_string(const std::string& name, const Signature& signature);

}  // namespace shardgen
