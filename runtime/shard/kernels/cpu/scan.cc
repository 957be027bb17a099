// CPU kernels that scan along one axis in order: argmax, argmin, cumsum.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/scan.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "shard/core/independent.h"
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/parts.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kColumns = 64;  // lines next to each other that are scanned at once

AxisView view_of(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten) {
  if (flatten) return {1, x.numel(), 1};
  return axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()));
}

/// Bools are compared as bytes: there are no vectors of bools.
template <class T>
using Comparable = std::conditional_t<std::is_same_v<T, bool>, uint8_t, Compute<T>>;

/// Whether `value` takes the place of the best number so far, which is the larger one if Better is
/// Larger, else the smaller one: the first NaN does, and then nothing.
template <class Better, class C>
bool exceeds(C value, C best) {
  const bool better = std::is_same_v<Better, Larger> ? value > best : value < best;
  return better || (value != value && best == best);
}

/// The indices of the best numbers of `columns` lines, whose elements are `step` apart.
template <class T, class Better>
void best_at(const T* x, int64_t size, int64_t step, int64_t columns, int64_t* best) {
  using C = Comparable<T>;
  if (step == 1) {
    // Blocks first: only one with a new best number is searched for its place.
    constexpr int64_t kBlock = 256;
    C top = static_cast<C>(x[0]);
    *best = 0;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, size);
      const C candidate = fold(
          end - begin, static_cast<C>(x[begin]), [=](int64_t i) { return static_cast<C>(x[begin + i]); }, Better());
      if (!exceeds<Better>(candidate, top)) continue;
      for (int64_t i = begin; i < end; ++i) {
        const C value = static_cast<C>(x[i]);
        if (!exceeds<Better>(value, top)) continue;
        top = value;
        *best = i;
      }
    }
    return;
  }
  C top[kColumns];
  for (int64_t j = 0; j < columns; ++j) {
    top[j] = static_cast<C>(x[j]);
    best[j] = 0;
  }
  for (int64_t i = 1; i < size; ++i) {
    const T* row = x + i * step;
    for (int64_t j = 0; j < columns; ++j) {
      const C value = static_cast<C>(row[j]);
      const bool better = exceeds<Better>(value, top[j]);
      top[j] = better ? value : top[j];
      best[j] = better ? i : best[j];
    }
  }
}

/// An integer whose order is that in which numbers take each other's place: the larger one wins, and NaN
/// always. Numbers that are equal have equal keys.
template <class T, class Better>
int64_t key_of(T value) {
  constexpr bool kLarger = std::is_same_v<Better, Larger>;
  int64_t key;
  if constexpr (is_float<T>) {
    const double number = static_cast<double>(static_cast<Compute<T>>(value)) + 0.0;  // -0 becomes 0
    if (number != number) return std::numeric_limits<int64_t>::max();
    std::memcpy(&key, &number, sizeof(key));
    if (key < 0) key ^= std::numeric_limits<int64_t>::max();
  } else {
    key = static_cast<int64_t>(value);
  }
  return kLarger ? key : ~key;
}

/// Replaces each rank's winners by those of all ranks that hold parts of the lines: the largest key wins,
/// and of equal ones the first index.
void combine_best(const OpContext& ctx, DenseTensor& keys, DenseTensor& indices) {
  const int64_t* const best = keys.data<int64_t>();
  const std::vector<int64_t> mine(best, best + keys.numel());
  ctx.all_reduce(keys, ReduceType::max);
  for (int64_t i = 0; i < keys.numel(); ++i) {
    if (mine[static_cast<size_t>(i)] != best[i]) indices.data<int64_t>()[i] = std::numeric_limits<int64_t>::max();
  }
  ctx.all_reduce(indices, ReduceType::min);
}

template <class T, class Better>
void index_of_best(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, DenseTensor& out) {
  const AxisView view = view_of(ctx, x, axis, flatten);
  const Box box = ctx.input_box(0, x);
  const int along =
      flatten || box.begin.rank() == 0 ? -1 : normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank());
  const auto write = [&](int64_t i, int64_t index) {
    if (out.dtype() == DType::int64) out.data<int64_t>()[i] = index;
    else out.data<int32_t>()[i] = static_cast<int32_t>(index);
  };
  DenseTensor keys, indices;  // of the winners among the elements that are here, where other ranks have others
  if (ctx.reducer() != nullptr) {
    const Meta lines{Dims{view.outer * view.inner}, DType::int64};
    keys = DenseTensor::allocate(kCpu, lines);
    indices = DenseTensor::allocate(kCpu, lines);
    std::fill_n(keys.data<int64_t>(), keys.numel(), std::numeric_limits<int64_t>::min());
    std::fill_n(indices.data<int64_t>(), indices.numel(), std::numeric_limits<int64_t>::max());
  }
  const int64_t strips = view.size == 0 ? 0 : (view.inner + kColumns - 1) / kColumns;
  parallel_for(view.outer * strips, view.size * std::min(view.inner, kColumns), [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job) {
      const int64_t outer = job / strips, column = job % strips * kColumns,
                    columns = std::min(kColumns, view.inner - column);
      int64_t best[kColumns];
      const T* const from = x.data<T>() + outer * view.size * view.inner + column;
      best_at<T, Better>(from, view.size, view.inner, columns, best);
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t i = outer * view.inner + column + j;
        const int64_t index =
            flatten ? place_in_whole(x.dims(), box, best[j]) : best[j] + (along < 0 ? 0 : box.begin[along]);
        if (!keys.defined()) {
          write(i, index);
          continue;
        }
        indices.data<int64_t>()[i] = index;
        keys.data<int64_t>()[i] = key_of<T, Better>(from[best[j] * view.inner + j]);
      }
    }
  });
  if (!keys.defined()) return;
  combine_best(ctx, keys, indices);
  for (int64_t i = 0; i < out.numel(); ++i) write(i, indices.data<int64_t>()[i]);
}

void index_of_best_dry(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, DenseTensor&) {
  const AxisView view = view_of(ctx, x, axis, flatten);
  dry_all_reduce(ctx, {Dims{view.outer * view.inner}, DType::int64}, ReduceType::max);
  dry_all_reduce(ctx, {Dims{view.outer * view.inner}, DType::int64}, ReduceType::min);
}

constexpr int64_t kStrip = 512;  // lines next to each other whose sums run at once

/// Lines next to each other of `size` elements that are `step` apart.
struct Lines {
  int64_t columns, size, step;
  bool exclusive, reverse;
};

/// The running sum of one line, of which `to[k]` is the sum up to `from[k]`; elements are `step` apart.
template <class R, class From, class To>
R running_sum(const From* from, To* to, int64_t size, int64_t step, bool exclusive, R sum) {
  for (int64_t k = 0; k < size; ++k) {
    const R next = wrap_add(sum, static_cast<R>(from[k * step]));
    to[k * step] = rounded<To>(static_cast<Running<To>>(exclusive ? sum : next));
    sum = next;
  }
  return sum;
}

/// Adds a row to the running sums of its columns.
template <class R, class From, class To>
void add_row(const From* from, To* to, int64_t columns, bool exclusive, R* sums) {
  SHARD_INDEPENDENT
  for (int64_t j = 0; j < columns; ++j) {
    const R next = wrap_add(sums[j], static_cast<R>(from[j]));
    to[j] = rounded<To>(static_cast<Running<To>>(exclusive ? sums[j] : next));
    sums[j] = next;
  }
}

/// `sums` are those before the first element of each line. `out` may be `x`.
template <class T>
void running_sums(const T* x, const Lines& lines, Running<T>* sums, T* out) {
  const int64_t step = lines.reverse ? -lines.step : lines.step;
  int64_t at = lines.reverse ? (lines.size - 1) * lines.step : 0;
  // Conversions of 16-bit floats are vectors where they stand apart from the sums; rows of bfloat16 are vectorised as they are.
  if constexpr (is_half<T>) {
    float block[kStrip];
    if (lines.columns == 1 && lines.step == 1) {
      for (int64_t k = 0; k < lines.size; k += kStrip) {
        const int64_t n = std::min(kStrip, lines.size - k), first = lines.reverse ? lines.size - k - n : k;
        float* const begin = lines.reverse ? block + n - 1 : block;
        widen(x + first, n, block);
        *sums = running_sum(begin, begin, n, step, lines.exclusive, *sums);
        narrow(block, n, out + first);
      }
      return;
    }
    if (lines.columns > 1 && std::is_same_v<T, float16>) {
      for (int64_t k = 0; k < lines.size; ++k, at += step) {
        widen(x + at, lines.columns, block);
        add_row(block, block, lines.columns, lines.exclusive, sums);
        narrow(block, lines.columns, out + at);
      }
      return;
    }
  }
  if (lines.columns == 1) {
    running_sum(x + at, out + at, lines.size, step, lines.exclusive, *sums);
    return;
  }
  for (int64_t k = 0; k < lines.size; ++k, at += step) add_row(x + at, out + at, lines.columns, lines.exclusive, sums);
}

/// Where other ranks hold parts of the lines, sums begin with those of the parts before.
template <class T>
void cumsum(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, bool exclusive, bool reverse,
            DenseTensor& out) {
  using R = Running<T>;
  const AxisView view = view_of(ctx, x, axis, flatten);
  const auto begin_of = [&](int64_t i) { return i / view.inner * view.size * view.inner + i % view.inner; };
  const auto total = [&](int64_t i) {
    const T* from = x.data<T>() + begin_of(i);
    R sum = 0;
    for (int64_t k = 0; k < view.size; ++k) sum = wrap_add(sum, static_cast<R>(from[k * view.inner]));
    return sum;
  };
  const std::vector<R> before =
      before_part(ctx, view, reverse, R(0), total, [](R sum, R part) { return wrap_add(sum, part); });
  if (view.inner == 0 || view.size == 0) return;
  const int64_t strip = std::min(kStrip, view.inner), strips = (view.inner + strip - 1) / strip;
  parallel_for(view.outer * strips, view.size * strip, [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job) {
      const int64_t column = job % strips * strip, line = job / strips * view.inner + column;
      const int64_t columns = std::min(strip, view.inner - column), base = begin_of(line);
      R sums[kStrip] = {};
      if (!before.empty()) std::copy_n(before.begin() + line, columns, sums);
      running_sums(x.data<T>() + base, {columns, view.size, view.inner, exclusive, reverse}, sums,
                   out.data<T>() + base);
    }
  });
}

void cumsum_dry(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, bool, bool,
                DenseTensor&) {
  const AxisView view = view_of(ctx, x, axis, flatten);
  gather_parts_dry(ctx, view.outer * view.inner, is_floating(x.dtype()) ? sizeof(double) : size_of(x.dtype()));
}

void register_scan_for_target() {
  for (const char* op : {"argmax", "argmin"}) register_dry_kernel(op, &index_of_best_dry);
  register_dry_kernel("cumsum", &cumsum_dry);
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("argmax", kBackend, dtype_of<T>, &index_of_best<T, Larger>);
    register_kernel("argmin", kBackend, dtype_of<T>, &index_of_best<T, Smaller>);
  });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("cumsum", kBackend, dtype_of<T>, &cumsum<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_scan_for_target);
void register_scan() { HWY_DYNAMIC_DISPATCH(register_scan_for_target)(); }
}  // namespace shard::cpu
#endif
