// The argument by which creation ops are told a layout.
#pragma once

#include <concepts>

namespace shard {

class DistSpec;

/// A `const DistSpec*`, and nothing else that C++ would turn into a pointer: in arange(0, 8, 0) the last 0 is the step.
struct LayoutArg {
  template <std::same_as<const DistSpec*> T>
  LayoutArg(T spec) : spec(spec) {}  // NOLINT: layouts convert

  const DistSpec* spec;
};

}  // namespace shard
