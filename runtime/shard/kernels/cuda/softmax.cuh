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

struct LargerNumber {
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
    maximum = line.reduce(maximum, LargerNumber{});
    line.each([&](int64_t, const auto& x) { sum += exp(x[0] - maximum); });
    return {maximum, line.reduce(sum, Plus{})};
  } else {
    Exponentials<M> mine{-INFINITY, 0};
    line.each([&](int64_t, const auto& x) { mine = MergeExponentials{}(mine, Exponentials<M>{x[0], M{1}}); });
    return line.reduce(mine, MergeExponentials{});
  }
}

/// Of lines of which other ranks hold parts, where it is known what those of all ranks have; else of whole lines.
struct LineTotals {
  const double *maxima = nullptr, *sums = nullptr;

  template <class Line>
  __device__ Exponentials<typename Line::Math> of(const Line& line) const {
    using M = typename Line::Math;
    if (sums == nullptr) return exponentials(line);
    return {static_cast<M>(maxima[line.index]), static_cast<M>(sums[line.index])};
  }
};

/// The largest element of each line.
template <class T>
struct LineMaxima {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;  // null
  double* maxima;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    math_t<T> maximum = -INFINITY;
    line.each([&](int64_t, const auto& x) { maximum = fmax(maximum, x[0]); });
    maximum = line.reduce(maximum, LargerNumber{});
    if (line.leads()) maxima[line.index] = static_cast<double>(maximum);
  }
};

/// The sum of exp(x - maximum) of each line, to which -inf adds nothing: the maximum may be -inf too.
template <class T>
struct LineExponentials {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;  // null
  const double* maxima;
  double* sums;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    const M maximum = static_cast<M>(maxima[line.index]);
    M sum = 0;
    line.each([&](int64_t, const auto& x) { sum += x[0] == -INFINITY ? M(0) : exp(x[0] - maximum); });
    sum = line.reduce(sum, Plus{});
    if (line.leads()) sums[line.index] = static_cast<double>(sum);
  }
};

/// The totals of the lines of x over all ranks that hold parts of them.
struct CombinedLines {
  DenseTensor maxima, sums;

  LineTotals totals() const {
    if (!sums.defined()) return {};
    return {maxima.data<double>(), sums.data<double>()};
  }
};
template <class T>
CombinedLines combine_lines(const OpContext& ctx, const DenseTensor& x, const LineShape& shape) {
  if (ctx.reducer() == nullptr) return {};
  CombinedLines all{numbers_of_lines(x, shape.lines()), numbers_of_lines(x, shape.lines())};
  const T* const from = elements<const T>(x);
  launch_lines(ctx, LineMaxima<T>{{from}, nullptr, all.maxima.data<double>()}, shape);
  ctx.all_reduce(all.maxima, ReduceType::max);
  launch_lines(ctx, LineExponentials<T>{{from}, nullptr, all.maxima.data<double>(), all.sums.data<double>()}, shape);
  ctx.all_reduce(all.sums, ReduceType::sum);
  return all;
}

}  // namespace shard::cuda
