// What put_along_axis does with values, for the kernels of all backends.
#pragma once

#include <string>

namespace shard {

enum class Put { assign, add, multiply, mean, amax, amin };

inline Put put_named(const std::string& name) {
  if (name == "add") return Put::add;
  if (name == "multiply" || name == "mul") return Put::multiply;
  if (name == "mean") return Put::mean;
  if (name == "amax") return Put::amax;
  if (name == "amin") return Put::amin;
  return Put::assign;  // the names are checked by PutAlongAxisInferMeta
}

}  // namespace shard
