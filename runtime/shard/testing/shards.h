// Splits tensors into local shards by a layout and joins them again, without the library's own
// reshard: the inputs and expected values of checks of distributed calls. Pending reductions are
// split in ways that reveal a wrong rule.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/dist/spec.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {

using Random = std::mt19937_64;

/// A number from low to high.
inline int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// A plain tensor of drawn elements. Where `layout` has a pending any or all, whose results are 0
/// or 1, all elements are 0 or 1.
SHARD_API DenseTensor draw_value(const CaseInput& input, const Layout& layout, Random& random);

/// The local shard of each process of layout.mesh, in the order of mesh->processes(). Contributions
/// to a pending reduction differ widely in size and sign, the value or the winner is at any
/// process, and some processes have the identity. Numbers stay so small that their reduction is
/// exactly `value`, in every order of axes that commute (`gentle`: all but one of them are -1, 0 or
/// 1).
SHARD_API std::vector<DenseTensor> split_value(const DenseTensor& value, const Layout& layout, Random& random,
                                               bool gentle = false);

/// The value that local shards represent, or a sentence about what is wrong with them: a shard
/// whose shape or dtype does not match the layout (shard_meta), or replicas that differ in a bit.
struct Joined {
  DenseTensor value;
  std::string problem;
};
SHARD_API Joined join_shards(const Meta& global, const Layout& layout, const std::vector<DenseTensor>& shards);

/// Empty when both have one meta and equal bits (all NaNs count as equal, and zeros of either
/// sign), or differ by at most `ulps` in units of the last place of the largest element, or of 1.
/// Otherwise a sentence.
SHARD_API std::string value_difference(const DenseTensor& actual, const DenseTensor& expected, double ulps);

}  // namespace shard::testing
