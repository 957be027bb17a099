// Forms all names that generated code introduces.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "model/op.h"

namespace shardgen {

/// Returns names of local variables that no argument and no earlier local has.
class Scope {
 public:
  explicit Scope(const Op& op);
  /// Returns `wanted`, or `wanted` with a number appended.
  std::string local(const std::string& wanted);

 private:
  std::set<std::string> taken_;
};

/// True for a namespace that generated code names. A function must not have such a name, but a
/// variable may, because a name before :: is never looked up as a variable.
bool is_runtime_namespace(std::string_view name);
/// The C++ function of an op: its name, without "__", which C++ reserves, and with "_op" appended
/// if the name is a namespace.
std::string cpp_name(const Op& op);
/// The name of the public function of an op: that of the op that it invokes for an overload.
std::string api_name(const Op& op);
/// True when only the in-place form of the op exists.
bool is_inplace_only(const Op& op);
/// The name of the in-place form: "add_", or "sgd_" of an op with that name.
std::string inplace_name(const Op& op);
/// The name of the function that returns intermediate outputs too.
std::string intermediate_name(const Op& op);
/// The name of a part of a family: "math", or "math_0" when there are several.
std::string part_name(const std::string& family, int part, int parts);
/// The function that adds the ops of a part, or of all parts, to a table: "register_api_math",
/// "register_api" for a header "api.h".
std::string register_name(std::string_view umbrella, const std::string& part = "");
/// The part of an op: a hash of its name alone.
int part_of(const std::string& op, int parts);
/// The same. An overload is in the part of the op that it invokes.
int part_of(const Op& op, int parts);

}  // namespace shardgen
