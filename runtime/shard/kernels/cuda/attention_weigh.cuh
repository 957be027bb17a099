// What the kernels of the gradients of attention on CUDA have in common: the arguments, and the gradient of one score.
#pragma once

#include "shard/kernels/cuda/attention.cuh"

namespace shard::cuda {

/// Which gradient a kernel computes.
enum class Of { query, key, value };

/// The forward op, its results and their gradients.
template <class T>
struct AttentionGrad {
  using C = math_t<T>;
  Attention<T> a;
  HeadRows<const T> out, out_grad;
  PerQuery<const C> lse;
  C* means;  // of each row of out: of the gradients of weights, which is subtracted from each of them
};

/// What the gradients of a row of scores are made of.
template <class C>
struct RowTerms {
  C lse, mean;
};

template <class C, class T>
__device__ RowTerms<C> row_terms(const AttentionGrad<T>& g, const Head<T>& head, int64_t i) {
  if (i >= head.s.queries) return {static_cast<C>(-INFINITY), C(0)};
  const int64_t row = (head.s.batch * g.a.q.rows + head.s.first_query + i) * g.a.q.heads + head.number;
  return {*g.lse.at(head.sequence, head.number, i), g.means[row]};
}

/// Makes a score and the gradient of its weight the weight, with dropout, and the gradient of the score. Both are 0 where the
/// weight is.
template <class C>
__device__ void weigh(const RowTerms<C>& row, C kept, C& score, C& slope) {
  const C hidden = -INFINITY;
  if (row.lse == hidden || score == hidden) {
    score = slope = 0;
  } else if (row.lse != row.lse) {  // the query sees what is not finite
    score = slope = row.lse;
  } else {
    const C weight = exp(score - row.lse);
    slope = weight == C(0) ? C(0) : weight * (kept * slope - row.mean);
    score = weight * kept;
  }
}

/// The heads of q that read a head of k and v: [first, last).
struct HeadGroup {
  int64_t first, last;

  template <class T>
  __device__ HeadGroup(const Attention<T>& a, int64_t kv_head) {
    const int64_t from = (a.first_kv_head + kv_head) * a.group - a.first_head, end = from + a.group;
    first = from < 0 ? 0 : from;
    last = end < a.q.heads ? end : a.q.heads;
  }
};

/// The rows of a tensor like k from key `first` of a sequence on, by their own head.
template <class T>
__device__ TileRows<T> key_rows(const HeadRows<T>& x, const Sequence& s, int64_t first, int64_t head, int most) {
  const int64_t left = s.keys - first;
  return {x.at(s.batch, s.first_key + first, head), x.step(), left < most ? static_cast<int>(left) : most, x.width};
}

/// The gradients of queries, or of keys and values (Of::key), where the tensor cores can; returns whether they did.
template <class T>
bool grads_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionGrad<T>& g, Of of,
                           const AttentionGrads& grads);

}  // namespace shard::cuda
