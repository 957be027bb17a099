// The CPU kernels of flash_attn and of its gradient: each batch is a sequence of attention.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/attention.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/attention.h"
#include "shard/kernels/cpu/attention_grad.h"
#include "shard/kernels/cpu/attention_parts.h"
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

void flash_attn_dry(const OpContext& ctx, const DenseTensor& q, const DenseTensor&, const DenseTensor& v,
                    const DenseTensor&, const DenseTensor&, float, bool, bool, bool, const std::string&, RandomKey,
                    DenseTensor&, DenseTensor&, DenseTensor&, DenseTensor&) {
  attend_to_parts_dry(ctx, q, v);
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
  attend_to_all(ctx, all, gathered_numbers(q, v));
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
                   grad_rows_of<T>(q_grad, b, 0), grad_rows_of<T>(k_grad, b, 0), grad_rows_of<T>(v_grad, b, 0)});
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
