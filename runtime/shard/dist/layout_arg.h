// The layout argument of creation ops.
#pragma once

#include <concepts>

namespace shard {

class DistSpec;

/// Converts from a `const DistSpec*`, but not from anything else that C++ would convert to a
/// pointer: in arange(0, 8, 0) the last 0 is the step.
struct LayoutArg {
  template <std::same_as<const DistSpec*> T>
  LayoutArg(T spec) : spec(spec) {}  // NOLINT: layouts convert

  const DistSpec* spec;
};

}  // namespace shard
