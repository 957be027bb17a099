// What a call of an op of attention attends to: the queries, keys and values of one sequence after another, and which of
// them see each other.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_ATTENTION_SEQUENCE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ATTENTION_SEQUENCE_H
#undef SHARD_KERNELS_CPU_ATTENTION_SEQUENCE_H
#else
#define SHARD_KERNELS_CPU_ATTENTION_SEQUENCE_H
#endif

#include "hwy/highway.h"

#include <algorithm>

#include "shard/core/op_context.h"
#include "shard/core/random.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// Rows of a sequence, [row][head][width].
template <class T>
struct Rows {
  T* data;
  int64_t heads, width;

  T* at(int64_t row, int64_t head) const { return data + (row * heads + head) * width; }
};

/// Numbers, or rows of them, for each head and query.
template <class T>
struct PerHead {
  T* data = nullptr;  // null where there are none
  int64_t head_step = 0, query_step = 0;

  T* at(int64_t head, int64_t query) const { return data + head * head_step + query * query_step; }
};

/// The part of a tensor [batch, heads, queries, keys] (of fewer dims without the last ones) for one of the batch. Dims
/// of size 1 are broadcast.
template <class T>
PerHead<T> per_head(const DenseTensor& x, int64_t b) {
  const Dims& dims = x.dims();
  const int64_t row = dims.numel(3, dims.rank()), head = dims[2] * row;
  return {x.data<std::remove_const_t<T>>() + (dims[0] == 1 ? 0 : b * dims[1] * head), dims[1] == 1 ? 0 : head,
          dims[2] == 1 ? 0 : row};
}

/// One sequence.
template <class T>
struct Attention {
  using C = Compute<T>;
  Rows<const T> q, k, v;
  int64_t queries, keys;                     // that are here
  PerHead<const T> mask;                     // [keys] for each head and query
  int64_t first_head, first_kv_head, group;  // local head 0 of q and of k; how many heads of q read one of k
  bool causal;
  int64_t diagonal;  // with causal, local query i sees the local keys up to i + diagonal
  double scale, dropout;
  RandomKey key;
  int64_t first_weight, head_step, query_step;  // the number of the weight of head h, query i and key j, for dropout,
                                                // is first_weight + h * head_step + i * query_step + j

  int64_t width() const { return q.width; }
  int64_t value_width() const { return v.width; }

  /// The head of k and v that local head `h` of q reads.
  int64_t kv_head(int64_t h) const { return (first_head + h) / group - first_kv_head; }
  /// The first local query from `first` on that may see a local key at or after `start`.
  int64_t first_query(int64_t first, int64_t start) const { return causal ? std::max(first, start - diagonal) : first; }
  /// How many local keys local query `i` may see; the last query sees most.
  int64_t visible(int64_t i) const { return causal ? std::clamp<int64_t>(i + diagonal + 1, 0, keys) : keys; }
  /// 1 / (1 - dropout) where the weight of key j is kept, else 0.
  C kept(int64_t h, int64_t i, int64_t j) const {
    const auto number = static_cast<uint64_t>(first_weight + h * head_step + i * query_step + j);
    const bool keeps = uniform01(random_word(key, number)) >= static_cast<float>(dropout);
    return keeps ? static_cast<C>(1.0 / (1.0 - dropout)) : C(0);
  }
};

/// The tensors of a call and what its sequences share; q, k, v are [batch, sequence, heads, width].
struct AttentionCall {
  const DenseTensor &q, &k, &v, &mask;
  Box q_box, k_box;
  bool causal;
  double scale, dropout;
  RandomKey key;
};

/// The place of a sequence in a call.
struct Sequence {
  int64_t batch;  // of q, k and v
  int64_t first_query, queries, first_key, keys;
  int64_t number;  // the place of its mask and statistics
  int64_t diagonal;
};

template <class T>
Rows<T> rows_of(const DenseTensor& x, int64_t batch, int64_t first) {
  const Dims& dims = x.dims();
  const int64_t row = dims[2] * dims[3];
  return {x.data<std::remove_const_t<T>>() + (batch * dims[1] + first) * row, dims[2], dims[3]};
}

template <class T>
Attention<T> attention_of(const AttentionCall& call, const Sequence& s) {
  const Box &q = call.q_box, &k = call.k_box;
  const int64_t heads = q.global[2], queries = q.global[1], keys = k.global[1];
  Attention<T> a{};
  a.q = rows_of<const T>(call.q, s.batch, s.first_query);
  a.k = rows_of<const T>(call.k, s.batch, s.first_key);
  a.v = rows_of<const T>(call.v, s.batch, s.first_key);
  a.queries = s.queries;
  a.keys = s.keys;
  if (call.mask.defined()) a.mask = per_head<const T>(call.mask, s.number);
  a.first_head = q.begin[2];
  a.first_kv_head = k.begin[2];
  a.group = heads / std::max<int64_t>(k.global[2], 1);
  a.causal = call.causal;
  a.diagonal = s.diagonal;
  a.scale = call.scale;
  a.dropout = call.dropout;
  a.key = call.key;
  // Weights are numbered in the whole [batch, heads, queries, keys].
  const int64_t first_row = ((q.begin[0] + s.batch) * heads + q.begin[2]) * queries + q.begin[1] + s.first_query;
  a.query_step = keys;
  a.head_step = queries * keys;
  a.first_weight = first_row * keys + k.begin[1] + s.first_key;
  return a;
}

/// The key of dropout as a tensor [2]: a seed and an offset.
inline RandomKey key_in(const DenseTensor& x) {
  return {static_cast<uint64_t>(x.data<int64_t>()[0]), static_cast<uint64_t>(x.data<int64_t>()[1])};
}
inline void store_key(RandomKey key, DenseTensor& to) {
  to.data<int64_t>()[0] = static_cast<int64_t>(key.seed);
  to.data<int64_t>()[1] = static_cast<int64_t>(key.offset);
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ATTENTION_SEQUENCE_H
