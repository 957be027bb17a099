// The gradients of attention as composites of other ops, for recorded calls. Unlike the kernels, they
// keep whole matrices of weights, of packed sequences one of all queries and keys.
#include <cmath>
#include <functional>
#include <limits>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/attention_ops.h"
#include "shard/ops/nn_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::widened;

namespace {

/// [batch, sequence, heads, width] as [batch, heads, sequence, width], and back.
Tensor swap_heads(const Tensor& x) { return transpose(x, {0, 2, 1, 3}); }

/// Repeats each head of [batch, heads, sequence, width] for all heads of q that read it.
Tensor repeat_heads(const Tensor& x, int64_t heads) {
  const Dims& dims = x.dims();
  if (dims[1] == heads) return x;
  return reshape(expand(unsqueeze(x, {2}), {dims[0], dims[1], heads / dims[1], dims[2], dims[3]}),
                 {dims[0], heads, dims[2], dims[3]});
}

/// The gradient of the argument of repeat_heads.
Tensor sum_heads(const Tensor& grad, int64_t heads) {
  const Dims& dims = grad.dims();
  return dims[1] == heads ? grad : sum(reshape(grad, {dims[0], heads, dims[1] / heads, dims[2], dims[3]}), {2});
}

/// The softmax of scores that are -infinity where a query does not see a key. Such keys have weight 0, even where a
/// query sees none.
Tensor weights_of(const Tensor& scores, const Tensor& unseen) {
  if (!unseen.defined()) return softmax(scores);
  // A finite number instead of -infinity, whose differences are NaN. Its exponential is 0 beside
  // any score.
  constexpr double kUnseen = -1e30;
  return where(unseen, full_like(scores, 0), softmax(where(unseen, full_like(scores, kUnseen), scores)));
}

/// The factors by which flash_attn multiplied the weights: its results for equal weights and values
/// that are unit vectors.
Tensor kept_weights(const Tensor& q, const Tensor& k, const Tensor& seed_offset, float dropout) {
  const Tensor query = full_like(widened(slice(q, {3}, {0}, {1})), 0),
               key = full_like(widened(slice(k, {3}, {0}, {1})), 0);
  const int64_t keys = k.dims()[1];
  const Tensor ones = expand(full_like(swap_heads(key), 1), {k.dims()[0], k.dims()[2], keys, keys});
  const Tensor values = swap_heads(subtract(tril(ones, 0), tril(ones, -1)));
  return scale(swap_heads(std::get<0>(flash_attn(query, key, values, seed_offset, {}, dropout))), keys);
}

double default_scale(const Tensor& q) { return 1 / std::sqrt(static_cast<double>(q.dims()[3])); }

/// `mask` without a gradient, if there is one.
Tensor constant(const Tensor& mask) { return mask.defined() ? mask.detach() : Tensor(); }

/// Attention of q, k and v [batch, sequence, heads, width] whose gradient is wanted.
struct Attended {
  const Tensor &q, &k, &v, &seed_offset;
  Tensor bias;  // added to the scores, [batch, heads, queries, keys] with a 1 for any of the first three; or none
  /// From the scores, of their shape: true where a query does not see a key. Null where each sees all.
  std::function<Tensor(const Tensor& scores)> unseen;
  double scale, dropout;
};

struct AttentionGrads {
  Tensor q, k, v, scores;
};

AttentionGrads attention_grads(const Attended& a, const Tensor& out_grad) {
  const Tensor &q = a.q, &k = a.k, &v = a.v;
  const int64_t heads = q.dims()[2];
  const Tensor grad = swap_heads(widened(out_grad));
  const Tensor queries = scale(swap_heads(widened(q)), a.scale);
  const Tensor keys = repeat_heads(swap_heads(widened(k)), heads), values = repeat_heads(swap_heads(widened(v)), heads);
  Tensor scores = matmul(queries, keys, false, true);
  Tensor unseen = a.unseen ? a.unseen(scores.detach()) : Tensor();
  if (a.bias.defined()) {
    scores = add(scores, widened(a.bias));
    const Tensor hidden = equal(scores.detach(), full_like(scores, -std::numeric_limits<double>::infinity()));
    unseen = unseen.defined() ? logical_or(unseen, hidden) : hidden;
  }
  const Tensor weights = weights_of(scores, unseen);
  Tensor kept = weights, weights_grad = matmul(grad, values, false, true);
  if (a.dropout > 0) {
    const Tensor factor = kept_weights(q, k, a.seed_offset, static_cast<float>(a.dropout));
    kept = multiply(kept, factor);
    weights_grad = multiply(weights_grad, factor);
  }
  const Tensor scores_grad = gradients::softmax_argument_grad(weights, weights_grad, -1);
  const auto back = [](const Tensor& each, const Tensor& x) {
    return narrowed(swap_heads(sum_heads(each, x.dims()[2])), x.dtype());
  };
  return {back(scale(matmul(scores_grad, keys), a.scale), q), back(matmul(scores_grad, queries, true), k),
          back(matmul(kept, grad, true), v), scores_grad};
}

/// Of each row of packed sequences: its sequence, and its place in that.
struct PackedRows {
  Tensor sequence, place;
};

/// `numbers` of a packed sequence each, for the rows of `sequence`.
Tensor for_rows(const Tensor& numbers, const Tensor& sequence) { return gather(cast(numbers, DType::int64), sequence); }

PackedRows packed_rows(const Tensor& cu_seqlens, int64_t rows) {
  const int64_t sequences = cu_seqlens.dims()[0] - 1;
  const Tensor one = full_like(cast(expand(slice(cu_seqlens, {0}, {0}, {1}), {rows}), DType::int64), 1);
  const Tensor row = cumsum(one, 0, false, /*exclusive=*/true);
  const Tensor ends = cast(slice(cu_seqlens, {0}, {1}, {sequences + 1}), DType::int64);
  const Tensor sequence = searchsorted(ends, row, /*out_int32=*/false, /*right=*/true);
  return {sequence, subtract(row, for_rows(slice(cu_seqlens, {0}, {0}, {sequences}), sequence))};
}

/// The lengths of packed sequences.
Tensor lengths_of(const Tensor& cu_seqlens) {
  const int64_t sequences = cu_seqlens.dims()[0] - 1;
  return subtract(slice(cu_seqlens, {0}, {1}, {sequences + 1}), slice(cu_seqlens, {0}, {0}, {sequences}));
}

Tensor as_column(const Tensor& x) { return unsqueeze(x, {-1}); }

/// Where packed queries and keys are of different sequences: [queries, keys].
Tensor differ(const PackedRows& q, const PackedRows& k) { return not_equal(as_column(q.sequence), k.sequence); }

/// Where packed keys are later in their sequence than the last that a query of the same sequence sees: its own place
/// plus the diagonal of the sequence.
Tensor is_later(const PackedRows& q, const PackedRows& k, const Tensor& diagonals) {
  return greater_than(k.place, as_column(add(q.place, for_rows(diagonals, q.sequence))));
}

/// Where a query of a batch does not see a key, of the shape of the scores: keys that are later than its place plus the
/// diagonal of the batch, with causal, and keys beyond a length.
Tensor unseen_in_batches(const Tensor& scores, bool causal, const Tensor& diagonals, const Tensor& lengths) {
  const Tensor one = full_like(cast(scores, DType::int64), 1), key = cumsum(one, 3, false, /*exclusive=*/true);
  const auto of_batch = [](const Tensor& x) { return unsqueeze(cast(x, DType::int64), {1, 2, 3}); };
  Tensor unseen;
  if (causal) {
    const Tensor query = cumsum(one, 2, false, /*exclusive=*/true);
    unseen = greater_than(key, diagonals.defined() ? add(query, of_batch(diagonals)) : query);
  }
  if (!lengths.defined()) return unseen;
  const Tensor beyond = greater_equal(key, of_batch(lengths));
  return unseen.defined() ? logical_or(unseen, beyond) : beyond;
}

/// The mask of each packed query and key, [1, heads or 1, queries, keys].
Tensor packed_mask(const Tensor& mask, const PackedRows& q, const PackedRows& k) {
  const auto queries = q.place.dims()[0], keys = k.place.dims()[0];
  const auto along = [&](const Tensor& index, int64_t size) {  // a mask of size 1 is that of all
    return expand(unsqueeze(size == 1 ? full_like(index, 0) : index, {-1}), {queries, keys, 1});
  };
  const Dims& dims = mask.dims();
  const Tensor index = concat({along(as_column(q.sequence), dims[0]), along(as_column(q.place), dims[2]),
                               along(unsqueeze(k.place, {0}), /*of all keys*/ 2)},
                              2);
  return unsqueeze(transpose(gather_nd(transpose(mask, {0, 2, 3, 1}), index), {2, 0, 1}), {0});
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> flash_attn_grad(const Tensor& q, const Tensor& k, const Tensor& v,
                                                   const Tensor& seed_offset, const Tensor& attn_mask,
                                                   const Tensor& out_grad, float dropout, bool causal, bool is_test) {
  Attended call{q, k, v, seed_offset, constant(attn_mask), {}, default_scale(q), is_test ? 0 : double{dropout}};
  if (causal) {
    const auto later = static_cast<int>(k.dims()[1] - q.dims()[1]);
    call.unseen = [=](const Tensor& scores) { return logical_not(tril(full_like(scores, 1), later)); };
  }
  const AttentionGrads grads = attention_grads(call, out_grad);
  return {grads.q, grads.k, grads.v};
}

std::tuple<Tensor, Tensor, Tensor> flash_attn_unpadded_grad(const Tensor& q, const Tensor& k, const Tensor& v,
                                                            const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                                            const Tensor& seed_offset, const Tensor& attn_mask,
                                                            const Tensor& out_grad, float scale, float dropout,
                                                            bool causal, bool is_test) {
  const PackedRows queries = packed_rows(cu_seqlens_q, q.dims()[0]), keys = packed_rows(cu_seqlens_k, k.dims()[0]);
  Tensor unseen = differ(queries, keys);
  if (causal) {
    const Tensor later = subtract(lengths_of(cu_seqlens_k), lengths_of(cu_seqlens_q));
    unseen = logical_or(unseen, is_later(queries, keys, later));
  }
  const auto batch = [](const Tensor& x) { return unsqueeze(x, {0}); };
  const Tensor wide_q = batch(q), wide_k = batch(k), wide_v = batch(v);
  const Attended call{wide_q,
                      wide_k,
                      wide_v,
                      seed_offset,
                      attn_mask.defined() ? packed_mask(constant(attn_mask), queries, keys) : Tensor(),
                      [=](const Tensor& scores) { return expand_as(unseen, scores); },
                      double{scale},
                      is_test ? 0 : double{dropout}};
  const AttentionGrads grads = attention_grads(call, batch(out_grad));
  return {squeeze(grads.q, {0}), squeeze(grads.k, {0}), squeeze(grads.v, {0})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> memory_efficient_attention_grad(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, const Tensor& cu_seqlens_q,
    const Tensor& cu_seqlens_k, const Tensor& causal_diagonal, const Tensor& seqlen_k, const Tensor& seed_and_offset,
    const Tensor& output_grad, bool causal, double dropout_p, float scale, bool is_test) {
  Attended call{query,
                key,
                value,
                seed_and_offset,
                bias,
                {},
                scale < 0 ? default_scale(query) : double{scale},
                is_test ? 0 : dropout_p};
  if (bias.defined() && bias.dims().rank() == 2) call.bias = unsqueeze(bias, {0, 1});
  if (cu_seqlens_q.defined()) {
    const PackedRows queries = packed_rows(cu_seqlens_q, query.dims()[1]),
                     keys = packed_rows(cu_seqlens_k, key.dims()[1]);
    Tensor unseen = differ(queries, keys);
    if (causal) {
      const Tensor diagonal = causal_diagonal.defined() ? causal_diagonal : full_like(lengths_of(cu_seqlens_q), 0);
      unseen = logical_or(unseen, is_later(queries, keys, diagonal));
    }
    if (seqlen_k.defined()) unseen = logical_or(unseen, greater_equal(keys.place, for_rows(seqlen_k, keys.sequence)));
    call.unseen = [=](const Tensor& scores) { return expand_as(unseen, scores); };
  } else if (causal || seqlen_k.defined()) {
    call.unseen = [=](const Tensor& scores) { return unseen_in_batches(scores, causal, causal_diagonal, seqlen_k); };
  }
  const AttentionGrads grads = attention_grads(call, output_grad);
  const Tensor bias_grad =
      bias.defined() ? narrowed(gradients::sum_to(grads.scores, bias.dims()), bias.dtype()) : Tensor();
  return {grads.q, grads.k, grads.v, bias_grad};
}

}  // namespace shard::external
