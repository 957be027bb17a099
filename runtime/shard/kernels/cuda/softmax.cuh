// The maximum and the sum of exponentials of a line, for softmax and what is built on it.
#pragma once

#include "shard/kernels/cuda/lines.cuh"

namespace shard::cuda {

/// The largest element, and the sum of exp(x - maximum).
template <class M>
struct Exponentials {
  M maximum;
  M sum;
};

/// exp(from - to), where an empty set (-inf) scales by 1 instead of NaN.
template <class M>
__device__ M rescale(M from, M to) {
  return from == to && from == -INFINITY ? M{1} : exp(from - to);
}

struct MergeExponentials {
  template <class M>
  __device__ Exponentials<M> operator()(const Exponentials<M>& a, const Exponentials<M>& b) const {
    const M maximum = fmax(a.maximum, b.maximum);
    return {maximum, a.sum * rescale(a.maximum, maximum) + b.sum * rescale(b.maximum, maximum)};
  }
};

struct Larger {
  template <class M>
  __device__ M operator()(M a, M b) const {
    return fmax(a, b);
  }
};

/// Of input 0 of the line: in two passes over registers, or in one over memory.
template <class Line>
__device__ Exponentials<typename Line::Math> exponentials(const Line& line) {
  using M = typename Line::Math;
  if constexpr (Line::kCached) {
    M maximum = -INFINITY, sum = 0;
    line.each([&](int64_t, const auto& x) { maximum = fmax(maximum, x[0]); });
    maximum = line.reduce(maximum, Larger{});
    line.each([&](int64_t, const auto& x) { sum += exp(x[0] - maximum); });
    return {maximum, line.reduce(sum, Plus{})};
  } else {
    Exponentials<M> mine{-INFINITY, 0};
    line.each([&](int64_t, const auto& x) { mine = MergeExponentials{}(mine, Exponentials<M>{x[0], M{1}}); });
    return line.reduce(mine, MergeExponentials{});
  }
}

}  // namespace shard::cuda
