// Attention whose keys other ranks hold too, one sequence in each batch: the maxima, sums and weighted values of the parts
// are combined.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_ATTENTION_PARTS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ATTENTION_PARTS_H
#undef SHARD_KERNELS_CPU_ATTENTION_PARTS_H
#else
#define SHARD_KERNELS_CPU_ATTENTION_PARTS_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <vector>

#include "shard/kernels/cpu/attention.h"
#include "shard/kernels/cpu/parts.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// How many numbers are gathered of q's queries and heads: the maximum, the sum and the weighted values of each.
inline int64_t gathered_numbers(const DenseTensor& q, const DenseTensor& v) {
  return q.dims().numel(0, 3) * (v.dims()[3] + 2);
}

/// The numbers of the block of queries from `first` on, to be gathered.
template <class T, class F>
void store_part(const Attention<T>& a, int64_t first, const Block<F>& block, Sum<F>* to) {
  const int64_t width = a.value_width();
  for (int64_t i = 0; i < std::min(kQueries, a.queries - first); ++i, to += width + 2) {
    to[0] = block.largest[i];
    to[1] = block.total[i];
    if (block.largest[i] == lowest<Sum<F>>()) std::fill_n(to + 2, width, Sum<F>(0));
    else std::copy_n(block.sums.get() + i * block.value_step, width, to + 2);
  }
}

/// Combines those of all ranks, which begin at `at`: each part is scaled to the largest score of all. A part that
/// weighs nothing beside it adds nothing, even if it is not finite.
template <class T, class F>
void combine_parts(const Attention<T>& a, int64_t first, const Parts<Sum<F>>& parts, int64_t at, Block<F>& block) {
  using C = Sum<F>;
  const int64_t width = a.value_width();
  for (int64_t i = 0; i < std::min(kQueries, a.queries - first); ++i, at += width + 2) {
    C largest = lowest<C>(), total = 0;
    for (int64_t part = 0; part < parts.count(); ++part) largest = Larger()(largest, parts.of(part)[at]);
    C* const sums = block.sums.get() + i * block.value_step;
    std::fill_n(sums, width, C(0));
    for (int64_t part = 0; part < parts.count() && largest != lowest<C>(); ++part) {
      const C* const from = parts.of(part) + at;
      const C shrink = exp_of(from[0] - largest);
      if (shrink == C(0)) continue;
      total += from[1] * shrink;
      for (int64_t d = 0; d < width; ++d) sums[d] += from[2 + d] * shrink;
    }
    block.largest[i] = largest;
    block.total[i] = total;
  }
}

/// Where other ranks hold other keys: each rank attends to its own, and all combine what they have. `all` are the
/// batches, and `numbers` are gathered.
template <class T>
void attend_to_parts(const OpContext& ctx, const std::vector<Attended<T>>& all, int64_t numbers) {
  using C = Compute<T>;
  std::vector<C> mine(static_cast<size_t>(numbers));
  const auto place = [&](const Attended<T>& to, int64_t h, int64_t first) {
    const int64_t line = (&to - all.data()) * to.a.q.heads + h;
    return (line * to.a.queries + first) * (to.a.value_width() + 2);
  };
  with_factors<T>([&]<class F>() {
    for_blocks<F>(all, [&](const Attended<T>& to, int64_t h, int64_t first, Block<F>& block) {
      attend(to.a, h, first, block);
      store_part(to.a, first, block, mine.data() + place(to, h, first));
    });
    const Parts<C> parts = gather_parts(ctx, mine);
    for_blocks<F>(all, [&](const Attended<T>& to, int64_t h, int64_t first, Block<F>& block) {
      load_queries(to.a, h, first, std::min(kQueries, to.a.queries - first), block);  // for scores of softmax
      combine_parts(to.a, first, parts, place(to, h, first), block);
      store_results(to, h, first, block);
    });
  });
}

/// The same, or the results of all sequences where the keys are whole.
template <class T>
void attend_to_all(const OpContext& ctx, const std::vector<Attended<T>>& all, int64_t numbers) {
  if (ctx.reducer() != nullptr) attend_to_parts(ctx, all, numbers);
  else attend_all(all);
}

/// What a dry call sends.
inline void attend_to_parts_dry(const OpContext& ctx, const DenseTensor& q, const DenseTensor& v) {
  gather_parts_dry(ctx, gathered_numbers(q, v), q.dtype() == DType::float64 ? 8 : 4);
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ATTENTION_PARTS_H
