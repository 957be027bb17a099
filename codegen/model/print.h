// Prints the model as YAML text: to_string(parse(s)) == s for every signature in canonical spacing.
#pragma once

#include <functional>
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
/// "use_global_stats || wanted(x_grad)"; `spell` returns the text of each name.
std::string condition_text(const Condition& condition, const std::function<std::string(const Condition::Term&)>& spell);
std::string condition_text(const Condition& condition);

}  // namespace shardgen
