// What kernels that run along a dim gather from the other parts of each line, where ranks share its elements.
#pragma once

#include <type_traits>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/registry.h"

namespace shard::cpu {

/// Running values of float are computed in double, so that long rows keep their accuracy.
template <class T>
using Running = std::conditional_t<is_float<T>, double, T>;

template <class T>
T rounded(Running<T> value) {
  if constexpr (is_half<T>) return T(static_cast<float>(value));
  else return static_cast<T>(value);
}

/// As many values from each rank that has a part of the lines, in the order of the parts.
template <class R>
struct Parts {
  Gathered gathered;

  int64_t count() const { return gathered.all.dims()[0]; }
  int64_t mine() const { return gathered.mine; }
  const R* of(int64_t part) const {
    return reinterpret_cast<const R*>(gathered.all.data<uint8_t>() + part * gathered.all.dims()[1]);
  }
};

/// `values` of all ranks, each with as many.
template <class R>
Parts<R> gather_parts(const OpContext& ctx, const std::vector<R>& values) {
  static_assert(std::is_trivially_copyable_v<R>);
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(R));
  const DenseTensor mine = DenseTensor::allocate(kCpu, {Dims{bytes}, DType::uint8});
  std::copy_n(reinterpret_cast<const uint8_t*>(values.data()), bytes, mine.data<uint8_t>());
  return {ctx.reducer()->all_gather(mine)};
}

/// What a dry call of gather_parts sends, for that many values of `size` bytes.
inline void gather_parts_dry(const OpContext& ctx, int64_t count, size_t size) {
  dry_all_gather(ctx, {Dims{count * static_cast<int64_t>(size)}, DType::uint8});
}

/// For each line what the elements before the part that is here come to, in reverse those behind it: the totals of the
/// other parts, combined in their order. Empty where lines are whole.
template <class R, class Total, class Combine>
std::vector<R> before_part(const OpContext& ctx, const AxisView& view, bool reverse, const R& nothing,
                           const Total& total, const Combine& combine) {
  if (ctx.reducer() == nullptr) return {};
  std::vector<R> before(static_cast<size_t>(view.outer * view.inner), nothing);
  std::vector<R> totals = before;
  parallel_for(view.outer * view.inner, view.size, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) totals[static_cast<size_t>(i)] = total(i);
  });
  const Parts<R> parts = gather_parts(ctx, totals);
  const int64_t step = reverse ? -1 : 1;
  for (int64_t part = reverse ? parts.count() - 1 : 0; part != parts.mine(); part += step) {
    for (size_t i = 0; i < before.size(); ++i) before[i] = combine(before[i], parts.of(part)[i]);
  }
  return before;
}

}  // namespace shard::cpu
