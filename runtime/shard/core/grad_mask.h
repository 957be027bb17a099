// Which results of a gradient function are wanted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shard {

/// A bit per output slot of a gradient function. An output that is not wanted may be left
/// undefined, so that it need not be computed. Ops take it as the attribute of its bits.
class GradMask {
 public:
  /// All outputs are wanted.
  constexpr GradMask() = default;
  explicit constexpr GradMask(int64_t bits) : bits_(static_cast<uint64_t>(bits)) {}
  static constexpr GradMask none() { return GradMask(0); }
  /// -1 where nothing is left out, however many outputs there are.
  constexpr operator int64_t() const { return static_cast<int64_t>(bits_); }

  constexpr bool operator[](size_t slot) const { return (bits_ >> slot & 1) != 0; }
  constexpr void add(size_t slot) { bits_ |= uint64_t{1} << slot; }
  constexpr void remove(size_t slot) { bits_ &= ~(uint64_t{1} << slot); }

 private:
  uint64_t bits_ = ~uint64_t{0};
};

}  // namespace shard
