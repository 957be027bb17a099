// Forms every name that generated code introduces.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "model/op.h"

namespace shardgen {

/// Hands out names of local variables that no argument and no earlier local has.
class Scope {
 public:
  explicit Scope(const Op& op);
  /// `wanted`, or `wanted` with a number behind it.
  std::string local(const std::string& wanted);

 private:
  std::set<std::string> taken_;
};

/// True for a namespace that generated code names: a function may not have such a name, but a variable may, because a name
/// before :: is never looked up as a variable.
bool is_runtime_namespace(std::string_view name);
/// The C++ function that an op becomes: its name, without "__", which C++ keeps for itself, and with "_op" behind it where the
/// name is a namespace.
std::string cpp_name(const Op& op);
/// True when only the in-place form of the op exists.
bool is_inplace_only(const Op& op);
/// The name of the in-place form: "add_", or "sgd_" of an op that is called so.
std::string inplace_name(const Op& op);
/// The name of the function that returns intermediate outputs too.
std::string intermediate_name(const Op& op);
/// The name of a family's part: "math", or "math_0" when there are several.
std::string part_name(const std::string& family, int part, int parts);
/// The function that adds the ops of a part to a table, or of all parts: "register_api_math", "register_api" for a header "api.h".
std::string register_name(const std::string& umbrella, const std::string& part = "");
/// Which part an op belongs to: a hash of its name alone.
int part_of(const std::string& op, int parts);

}  // namespace shardgen
