// Which results of a gradient function are wanted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shard {

/// A bit per output slot of a gradient function. An output that is not wanted may be left
/// undefined, so that it need not be computed.
class GradMask {
 public:
  /// All outputs are wanted.
  constexpr GradMask() = default;
  static constexpr GradMask none() { return GradMask(0); }

  constexpr bool operator[](size_t slot) const { return (bits_ >> slot & 1) != 0; }
  constexpr void add(size_t slot) { bits_ |= uint64_t{1} << slot; }

 private:
  explicit constexpr GradMask(uint64_t bits) : bits_(bits) {}

  uint64_t bits_ = ~uint64_t{0};
};

}  // namespace shard
