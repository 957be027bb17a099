// The gradient of attention as a composite of other ops, for recorded calls. Unlike the kernel, it
// keeps whole matrices of weights.
#include <cmath>
#include <limits>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
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

/// The softmax of the scores of keys. Masked keys have weight 0, even where a query sees no key.
Tensor weights_of(const Tensor& scores, const Tensor& attn_mask, bool causal) {
  if (!causal && !attn_mask.defined()) return softmax(scores);
  // A finite number instead of -infinity, whose differences are NaN. Its exponential is 0 beside
  // any score.
  constexpr double kUnseen = -1e30;
  const Tensor masked = attn_mask.defined() ? add(scores, widened(attn_mask.detach())) : scores,
               zero = full_like(scores, 0);
  Tensor unseen = equal(masked, full_like(scores, -std::numeric_limits<double>::infinity()));
  if (causal) {
    const int64_t later = scores.dims()[3] - scores.dims()[2];
    unseen = logical_or(unseen, logical_not(tril(full_like(scores, 1), static_cast<int>(later))));
  }
  return where(unseen, zero, softmax(where(unseen, full_like(scores, kUnseen), masked)));
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

}  // namespace

std::tuple<Tensor, Tensor, Tensor> flash_attn_grad(const Tensor& q, const Tensor& k, const Tensor& v,
                                                   const Tensor& seed_offset, const Tensor& attn_mask,
                                                   const Tensor& out_grad, float dropout, bool causal, bool is_test) {
  const int64_t heads = q.dims()[2];
  const Tensor grad = swap_heads(widened(out_grad));
  const Tensor queries = scale(swap_heads(widened(q)), 1 / std::sqrt(static_cast<double>(q.dims()[3])));
  const Tensor keys = repeat_heads(swap_heads(widened(k)), heads), values = repeat_heads(swap_heads(widened(v)), heads);
  const Tensor weights = weights_of(matmul(queries, keys, false, true), attn_mask, causal);
  Tensor kept = weights, weights_grad = matmul(grad, values, false, true);
  if (dropout > 0 && !is_test) {
    const Tensor factor = kept_weights(q, k, seed_offset, dropout);
    kept = multiply(kept, factor);
    weights_grad = multiply(weights_grad, factor);
  }
  const Tensor scores_grad = gradients::softmax_argument_grad(weights, weights_grad, -1);
  const Tensor q_grad = scale(matmul(scores_grad, keys), 1 / std::sqrt(static_cast<double>(q.dims()[3])));
  const auto back = [](const Tensor& each, const Tensor& x) {
    return narrowed(swap_heads(sum_heads(each, x.dims()[2])), x.dtype());
  };
  return {back(q_grad, q), back(matmul(scores_grad, queries, true), k), back(matmul(kept, grad, true), v)};
}

}  // namespace shard::external
