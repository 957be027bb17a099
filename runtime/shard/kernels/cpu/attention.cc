// The CPU kernels of flash_attn and of its gradient: each batch is a sequence of attention.h. Where keys are sharded,
// the maxima, sums and weighted values of the parts are combined.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/attention.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/attention.h"
#include "shard/kernels/cpu/attention_grad.h"
#include "shard/kernels/cpu/parts.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// The sequence of batch `b`: the queries and keys that are here. The last query of all sees all keys.
Sequence sequence_of(const AttentionCall& call, int64_t b) {
  const Box &q = call.q_box, &k = call.k_box;
  const int64_t diagonal = q.begin[1] + k.global[1] - q.global[1] - k.begin[1];
  return {b, 0, call.q.dims()[1], 0, call.k.dims()[1], b, diagonal};
}

double scale_of(const DenseTensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.dims()[3])); }

/// How many numbers are gathered of q's queries and heads: the maximum, the sum and the weighted values of each.
int64_t gathered_numbers(const DenseTensor& q, const DenseTensor& v) {
  return q.dims().numel(0, 3) * (v.dims()[3] + 2);
}

/// The numbers of the block of queries from `first` on, to be gathered.
template <class T, class F>
void store_part(const Attention<T>& a, int64_t first, const Block<F>& block, Sum<F>* to) {
  const int64_t width = a.value_width();
  for (int64_t i = 0; i < std::min(kQueries, a.queries - first); ++i, to += width + 2) {
    to[0] = block.largest[i];
    to[1] = block.total[i];
    std::copy_n(block.sums.get() + i * block.value_step, width, to + 2);
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

void flash_attn_dry(const OpContext& ctx, const DenseTensor& q, const DenseTensor&, const DenseTensor& v,
                    const DenseTensor&, const DenseTensor&, float, bool, bool, bool, const std::string&, RandomKey,
                    DenseTensor&, DenseTensor&, DenseTensor&, DenseTensor&) {
  gather_parts_dry(ctx, gathered_numbers(q, v), q.dtype() == DType::float64 ? 8 : 4);
}

template <class T>
void flash_attn(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                const DenseTensor& fixed_seed_offset, const DenseTensor& attn_mask, float dropout, bool causal, bool,
                bool is_test, const std::string&, RandomKey drawn, DenseTensor& out, DenseTensor& softmax,
                DenseTensor& softmax_lse, DenseTensor& seed_offset) {
  const bool drops = dropout > 0 && !is_test;
  const RandomKey key = fixed_seed_offset.defined() ? key_in(fixed_seed_offset) : drawn;
  store_key(drops ? key : RandomKey{}, seed_offset);
  const AttentionCall call{q,
                           k,
                           v,
                           attn_mask,
                           ctx.input_box(0, q),
                           ctx.input_box(1, k),
                           causal,
                           scale_of(q),
                           drops ? static_cast<double>(dropout) : 0,
                           key};
  std::vector<Attended<T>> all;
  for (int64_t b = 0; b < q.dims()[0]; ++b) {
    const PerHead<T> weights = softmax.dims().rank() == 4 ? per_head<T>(softmax, b) : PerHead<T>();
    all.push_back({attention_of<T>(call, sequence_of(call, b)), rows_of<T>(out, b, 0), weights,
                   per_head<Statistic<T>>(softmax_lse, b)});
  }
  if (ctx.reducer() != nullptr) attend_to_parts(ctx, all, gathered_numbers(q, v));
  else attend_all(all);
}

template <class T>
void flash_attn_grad(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                     const DenseTensor& out, const DenseTensor& softmax_lse, const DenseTensor& seed_offset,
                     const DenseTensor& attn_mask, const DenseTensor& out_grad, float dropout, bool causal,
                     bool is_test, DenseTensor& q_grad, DenseTensor& k_grad, DenseTensor& v_grad) {
  const AttentionCall call{q,
                           k,
                           v,
                           attn_mask,
                           ctx.input_box(0, q),
                           ctx.input_box(1, k),
                           causal,
                           scale_of(q),
                           is_test ? 0 : static_cast<double>(dropout),
                           key_in(seed_offset)};
  std::vector<AttentionGrad<T>> all;
  for (int64_t b = 0; b < q.dims()[0]; ++b) {
    all.push_back({attention_of<T>(call, sequence_of(call, b)), rows_of<const T>(out, b, 0),
                   rows_of<const T>(out_grad, b, 0), per_head<const Statistic<T>>(softmax_lse, b),
                   rows_of<T>(q_grad, b, 0), rows_of<T>(k_grad, b, 0), rows_of<T>(v_grad, b, 0)});
  }
  attention_grads(all);
}

void register_attention_for_target() {
  register_dry_kernel("flash_attn", &flash_attn_dry);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("flash_attn", kBackend, dtype_of<T>, &flash_attn<T>);
    register_kernel("flash_attn_grad", kBackend, dtype_of<T>, &flash_attn_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_attention_for_target);
void register_attention() { HWY_DYNAMIC_DISPATCH(register_attention_for_target)(); }
}  // namespace shard::cpu
#endif
