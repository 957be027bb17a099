// The CPU kernels of the ops of attention.yaml: attention over sequences that are packed one after another, or one in
// each batch, with lengths, a diagonal and a bias that has a gradient. They call attention.h for each sequence.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/attention_packed.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/attention.h"
#include "shard/kernels/cpu/attention_grad.h"
#include "shard/kernels/cpu/attention_parts.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/data_text.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// A tensor of packed rows [rows, heads, width], if there is one, as one batch.
DenseTensor as_batch(const DenseTensor& x) {
  if (!x.defined()) return x;
  const Dims& d = x.dims();
  return x.reinterpret({Dims{1, d[0], d[1], d[2]}, x.dtype()});
}
Box as_batch(const Box& box) {
  return {{1, box.global[0], box.global[1], box.global[2]}, {0, box.begin[0], box.begin[1], box.begin[2]}};
}

/// The offsets of packed sequences.
struct Offsets {
  const char* name;
  const DenseTensor& at;
  const char* rows_name;
  int64_t rows;
  const char* longest_name;
  int64_t longest;

  int64_t count() const { return at.numel() - 1; }
  int64_t operator[](int64_t s) const { return at.data<int32_t>()[s]; }
  int64_t length(int64_t s) const { return (*this)[s + 1] - (*this)[s]; }
};

/// Throws out_of_range unless the offsets rise from 0 to the number of rows, in steps of at most the longest length.
void check_offsets(const OpContext& ctx, const Offsets& offsets) {
  for (int64_t s = 0; s <= offsets.count(); ++s) {
    const int64_t at = offsets[s], least = s == 0 ? 0 : offsets[s - 1];
    const int64_t most = s == 0 ? 0 : std::min(offsets.rows, least + offsets.longest);
    if (at >= least && at <= most && (s < offsets.count() || at == offsets.rows)) continue;
    fail_check(ErrorCode::out_of_range, "{}",
               offset_text(ctx.op, offsets.name, s, at, offsets.rows_name, offsets.rows, offsets.longest_name,
                           offsets.longest));
  }
}

/// Packed sequences, whose last queries see all keys.
std::vector<Sequence> packed_sequences(const OpContext& ctx, const Offsets& q, const Offsets& k) {
  check_offsets(ctx, q);
  check_offsets(ctx, k);
  std::vector<Sequence> all;
  for (int64_t s = 0; s < q.count(); ++s)
    all.push_back({0, q[s], q.length(s), k[s], k.length(s), s, k.length(s) - q.length(s)});
  return all;
}

template <class T>
void flash_attn_unpadded(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                         const DenseTensor& cu_seqlens_q, const DenseTensor& cu_seqlens_k,
                         const DenseTensor& fixed_seed_offset, const DenseTensor& attn_mask, int64_t max_seqlen_q,
                         int64_t max_seqlen_k, float scale, float dropout, bool causal, bool is_test, RandomKey drawn,
                         DenseTensor& out, DenseTensor& softmax, DenseTensor& softmax_lse, DenseTensor& seed_offset) {
  const std::vector<Sequence> sequences =
      packed_sequences(ctx, {"cu_seqlens_q", cu_seqlens_q, "q", q.dims()[0], "max_seqlen_q", max_seqlen_q},
                       {"cu_seqlens_k", cu_seqlens_k, "k", k.dims()[0], "max_seqlen_k", max_seqlen_k});
  const bool drops = dropout > 0 && !is_test;
  const RandomKey key = fixed_seed_offset.defined() ? key_in(fixed_seed_offset) : drawn;
  store_key(drops ? key : RandomKey{}, seed_offset);
  // Beyond the length of a sequence.
  std::fill_n(softmax.data<T>(), softmax.numel(), T(0.0f));
  std::fill_n(softmax_lse.data<Statistic<T>>(), softmax_lse.numel(), lowest<Statistic<T>>());
  const DenseTensor wide_q = as_batch(q), wide_k = as_batch(k), wide_v = as_batch(v), wide_out = as_batch(out);
  const AttentionCall call{wide_q,
                           wide_k,
                           wide_v,
                           attn_mask,
                           as_batch(ctx.input_box(0, q)),
                           as_batch(ctx.input_box(1, k)),
                           causal,
                           static_cast<double>(scale),
                           drops ? static_cast<double>(dropout) : 0,
                           key};
  std::vector<Attended<T>> all;
  for (const Sequence& s : sequences) {
    const PerHead<T> weights = softmax.dims().rank() == 4 ? per_head<T>(softmax, s.number) : PerHead<T>();
    all.push_back({attention_of<T>(call, s), rows_of<T>(wide_out, 0, s.first_query), weights,
                   per_head<Statistic<T>>(softmax_lse, s.number)});
  }
  attend_all(all);
}

template <class T>
void flash_attn_unpadded_grad(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k, const DenseTensor& v,
                              const DenseTensor& cu_seqlens_q, const DenseTensor& cu_seqlens_k, const DenseTensor& out,
                              const DenseTensor& softmax_lse, const DenseTensor& seed_offset,
                              const DenseTensor& attn_mask, const DenseTensor& out_grad, int64_t max_seqlen_q,
                              int64_t max_seqlen_k, float scale, float dropout, bool causal, bool is_test,
                              DenseTensor& q_grad, DenseTensor& k_grad, DenseTensor& v_grad) {
  const std::vector<Sequence> sequences =
      packed_sequences(ctx, {"cu_seqlens_q", cu_seqlens_q, "q", q.dims()[0], "max_seqlen_q", max_seqlen_q},
                       {"cu_seqlens_k", cu_seqlens_k, "k", k.dims()[0], "max_seqlen_k", max_seqlen_k});
  const DenseTensor wide_q = as_batch(q), wide_k = as_batch(k), wide_v = as_batch(v), wide_out = as_batch(out),
                    grads[] = {as_batch(out_grad), as_batch(q_grad), as_batch(k_grad), as_batch(v_grad)};
  const AttentionCall call{wide_q,
                           wide_k,
                           wide_v,
                           attn_mask,
                           as_batch(ctx.input_box(0, q)),
                           as_batch(ctx.input_box(1, k)),
                           causal,
                           static_cast<double>(scale),
                           is_test ? 0 : static_cast<double>(dropout),
                           key_in(seed_offset)};
  std::vector<AttentionGrad<T>> all;
  for (const Sequence& s : sequences) {
    all.push_back({attention_of<T>(call, s), rows_of<const T>(wide_out, 0, s.first_query),
                   rows_of<const T>(grads[0], 0, s.first_query), per_head<const Statistic<T>>(softmax_lse, s.number),
                   grad_rows_of<T>(grads[1], 0, s.first_query), grad_rows_of<T>(grads[2], 0, s.first_key),
                   grad_rows_of<T>(grads[3], 0, s.first_key)});
  }
  attention_grads(all);
}

/// The arguments of memory_efficient_attention that say which queries see which keys.
struct Visibility {
  const DenseTensor &cu_seqlens_q, &cu_seqlens_k, &causal_diagonal, &seqlen_k;
  int64_t max_seqlen_q, max_seqlen_k;
};

/// The sequences of a call, of which query i sees the keys up to i plus a diagonal. Lengths and diagonals count from the
/// first key of all, of which a shard has a part.
std::vector<Sequence> visible_sequences(const OpContext& ctx, const DenseTensor& q, const DenseTensor& k,
                                        const Visibility& by) {
  std::vector<Sequence> all;
  if (by.cu_seqlens_q.defined()) {
    all =
        packed_sequences(ctx, {"cu_seqlens_q", by.cu_seqlens_q, "query", q.dims()[1], "max_seqlen_q", by.max_seqlen_q},
                         {"cu_seqlens_k", by.cu_seqlens_k, "key", k.dims()[1], "max_seqlen_k", by.max_seqlen_k});
  } else {
    for (int64_t b = 0; b < q.dims()[0]; ++b) all.push_back({b, 0, q.dims()[1], 0, k.dims()[1], b, 0});
  }
  const Box keys = ctx.input_box(1, k);
  const int64_t first_query = ctx.input_box(0, q).begin[1], first_key = keys.begin[1];
  for (size_t s = 0; s < all.size(); ++s) {
    all[s].diagonal = first_query - first_key;
    if (by.causal_diagonal.defined()) all[s].diagonal += by.causal_diagonal.data<int32_t>()[s];
    if (!by.seqlen_k.defined()) continue;
    const int64_t length = by.seqlen_k.data<int32_t>()[s],
                  most = by.cu_seqlens_k.defined() ? all[s].keys : keys.global[1];
    if (length < 0 || length > most) {
      fail_check(ErrorCode::out_of_range, "{}",
                 length_text(ctx.op, ArgumentPlace(ctx, 7, by.seqlen_k), static_cast<int64_t>(s), length, most));
    }
    all[s].keys = std::clamp<int64_t>(length - first_key, 0, all[s].keys);
  }
  return all;
}

/// The bias with four dims: one of two dims is that of all batches and heads.
DenseTensor wide_bias(const DenseTensor& bias) {
  if (!bias.defined() || bias.dims().rank() == 4) return bias;
  return bias.reinterpret({Dims{1, 1, bias.dims()[0], bias.dims()[1]}, bias.dtype()});
}

double scale_of(const DenseTensor& query, float scale) {
  return scale < 0 ? 1.0 / std::sqrt(static_cast<double>(query.dims()[3])) : static_cast<double>(scale);
}

void memory_efficient_attention_dry(const OpContext& ctx, const DenseTensor& query, const DenseTensor&,
                                    const DenseTensor& value, const DenseTensor&, const DenseTensor&,
                                    const DenseTensor&, const DenseTensor&, const DenseTensor&, const Scalar&,
                                    const Scalar&, bool, double, float, bool, RandomKey, DenseTensor&, DenseTensor&,
                                    DenseTensor&) {
  attend_to_parts_dry(ctx, query, value);
}

template <class T>
void memory_efficient_attention(const OpContext& ctx, const DenseTensor& query, const DenseTensor& key,
                                const DenseTensor& value, const DenseTensor& bias, const DenseTensor& cu_seqlens_q,
                                const DenseTensor& cu_seqlens_k, const DenseTensor& causal_diagonal,
                                const DenseTensor& seqlen_k, const Scalar& max_seqlen_q, const Scalar& max_seqlen_k,
                                bool causal, double dropout_p, float scale, bool is_test, RandomKey drawn,
                                DenseTensor& output, DenseTensor& logsumexp, DenseTensor& seed_and_offset) {
  const std::vector<Sequence> sequences = visible_sequences(
      ctx, query, key,
      {cu_seqlens_q, cu_seqlens_k, causal_diagonal, seqlen_k, max_seqlen_q.to<int64_t>(), max_seqlen_k.to<int64_t>()});
  const bool drops = dropout_p > 0 && !is_test;
  store_key(drops ? drawn : RandomKey{}, seed_and_offset);
  std::fill_n(logsumexp.data<Statistic<T>>(), logsumexp.numel(), lowest<Statistic<T>>());  // beyond the lengths
  const DenseTensor mask = wide_bias(bias);
  const AttentionCall call{query,
                           key,
                           value,
                           mask,
                           ctx.input_box(0, query),
                           ctx.input_box(1, key),
                           causal,
                           scale_of(query, scale),
                           drops ? dropout_p : 0,
                           drawn};
  std::vector<Attended<T>> all;
  for (const Sequence& s : sequences) {
    all.push_back({attention_of<T>(call, s), rows_of<T>(output, s.batch, s.first_query), PerHead<T>(),
                   per_head<Statistic<T>>(logsumexp, s.number)});
  }
  attend_to_all(ctx, all, gathered_numbers(query, value));
}

/// Adds the gradients of the scores of queries [first, first + rows) to `sums`, [query][keys], or to one row of it.
template <class T, class F>
void add_slopes(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t rows, bool one_row, GradBlock<F>& block,
                int64_t keys, Sum<F>* sums) {
  load_grads(g, h, first, rows, block);
  const int64_t end = g.a.visible(first + rows - 1);
  for (int64_t start = 0; start < end; start += kKeys<F>) {
    const int64_t n = std::min(kKeys<F>, end - start);
    for (int64_t i = weigh(g, h, first, rows, start, n, block); i < rows; ++i) {
      Sum<F>* to = sums + (one_row ? 0 : i * keys) + start;
      for (int64_t j = 0; j < n; ++j) to[j] += static_cast<Sum<F>>(block.factors(i)[j]);
    }
  }
}

/// The gradient of the bias [batch, heads, queries, keys]: those of the scores, summed over the dims of size 1 in their
/// order. Scores are computed again, so that no [batch, heads, queries, keys] is stored where it is broadcast.
template <class F, class T>
void bias_grads(const std::vector<AttentionGrad<T>>& all, int64_t queries, int64_t heads,
                const DenseTensor& bias_grad) {
  using C = Sum<F>;
  const Dims& dims = bias_grad.dims();
  const bool one_row = dims[2] == 1;
  const int64_t blocks = one_row ? 1 : (queries + kQueries - 1) / kQueries, keys = dims[3];
  const int64_t cost = bias_grad.numel() == 0 ? 1
                                              : static_cast<int64_t>(all.size()) * heads * queries * keys *
                                                    (all.empty() ? 1 : all[0].a.width() + all[0].a.value_width()) /
                                                    (dims[0] * dims[1] * blocks);
  parallel_for(dims[0] * dims[1] * blocks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t head = job / blocks % dims[1], batch = job / blocks / dims[1], from = job % blocks * kQueries;
      const int64_t to = one_row ? queries : std::min(queries, from + kQueries), lines = one_row ? 1 : to - from;
      std::vector<C> sums(size_t(lines * keys));
      for (const AttentionGrad<T>& g : all) {
        if (dims[0] != 1 && &g != &all[size_t(batch)]) continue;
        GradBlock<F> block(std::min(kQueries, queries), g.a.keys, g.a.width(), g.a.value_width());
        for (int64_t h = dims[1] == 1 ? 0 : head; h < (dims[1] == 1 ? heads : head + 1); ++h)
          for (int64_t first = from; first < to; first += kQueries)
            add_slopes(g, h, first, std::min(kQueries, to - first), one_row, block, keys, sums.data());
      }
      T* out = bias_grad.data<T>() + ((batch * dims[1] + head) * dims[2] + (one_row ? 0 : from)) * keys;
      for (size_t i = 0; i < sums.size(); ++i) out[i] = T(sums[i]);
    }
  });
}

template <class T>
void memory_efficient_attention_grad(const OpContext& ctx, const DenseTensor& query, const DenseTensor& key,
                                     const DenseTensor& value, const DenseTensor& bias, const DenseTensor& cu_seqlens_q,
                                     const DenseTensor& cu_seqlens_k, const DenseTensor& causal_diagonal,
                                     const DenseTensor& seqlen_k, const DenseTensor& output,
                                     const DenseTensor& logsumexp, const DenseTensor& seed_and_offset,
                                     const DenseTensor& output_grad, const Scalar& max_seqlen_q,
                                     const Scalar& max_seqlen_k, bool causal, double dropout_p, float scale,
                                     bool is_test, DenseTensor& query_grad, DenseTensor& key_grad,
                                     DenseTensor& value_grad, DenseTensor& bias_grad) {
  const std::vector<Sequence> sequences = visible_sequences(
      ctx, query, key,
      {cu_seqlens_q, cu_seqlens_k, causal_diagonal, seqlen_k, max_seqlen_q.to<int64_t>(), max_seqlen_k.to<int64_t>()});
  const DenseTensor mask = wide_bias(bias);
  const AttentionCall call{query,
                           key,
                           value,
                           mask,
                           ctx.input_box(0, query),
                           ctx.input_box(1, key),
                           causal,
                           scale_of(query, scale),
                           is_test ? 0 : dropout_p,
                           key_in(seed_and_offset)};
  // Keys beyond the length of a sequence have no gradient.
  for (DenseTensor* grad : {&key_grad, &value_grad})
    if (grad->defined()) std::fill_n(grad->data<T>(), grad->numel(), T(0.0f));
  std::vector<AttentionGrad<T>> all;
  for (const Sequence& s : sequences) {
    all.push_back({attention_of<T>(call, s), rows_of<const T>(output, s.batch, s.first_query),
                   rows_of<const T>(output_grad, s.batch, s.first_query),
                   per_head<const Statistic<T>>(logsumexp, s.number),
                   grad_rows_of<T>(query_grad, s.batch, s.first_query), grad_rows_of<T>(key_grad, s.batch, s.first_key),
                   grad_rows_of<T>(value_grad, s.batch, s.first_key)});
  }
  attention_grads(all);
  if (bias_grad.defined()) {
    with_factors<T>([&]<class F>() { bias_grads<F>(all, query.dims()[1], query.dims()[2], wide_bias(bias_grad)); });
  }
}

void register_packed_attention_for_target() {
  register_dry_kernel("memory_efficient_attention", &memory_efficient_attention_dry);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("flash_attn_unpadded", kBackend, dtype_of<T>, &flash_attn_unpadded<T>);
    register_kernel("flash_attn_unpadded_grad", kBackend, dtype_of<T>, &flash_attn_unpadded_grad<T>);
    register_kernel("memory_efficient_attention", kBackend, dtype_of<T>, &memory_efficient_attention<T>);
    register_kernel("memory_efficient_attention_grad", kBackend, dtype_of<T>, &memory_efficient_attention_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_packed_attention_for_target);
void register_packed_attention() { HWY_DYNAMIC_DISPATCH(register_packed_attention_for_target)(); }
}  // namespace shard::cpu
#endif
