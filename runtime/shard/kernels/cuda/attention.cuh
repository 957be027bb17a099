// What the kernels of attention on CUDA have in common: the sequences of a call, and one head of one of them. As in
// kernels/cpu/attention_sequence.h.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {

/// The place of a sequence in q, k and v. With causal, query i sees the keys up to i + diagonal.
struct Sequence {
  int64_t batch, first_query, queries, first_key, keys, diagonal;
};

/// The sequences of a call: those of a table on the device, or one in each batch, which are alike.
struct Sequences {
  int64_t count, longest, longest_keys;  // how many, and the most queries and keys of one
  int64_t diagonal = 0;                  // where they are alike
  const Sequence* table = nullptr;

  __device__ Sequence operator[](int64_t s) const {
    return table != nullptr ? table[s] : Sequence{s, 0, longest, 0, longest_keys, diagonal};
  }
};

/// The key of dropout: a tensor [2] on the device, if there is one, or what was drawn.
struct DropoutKey {
  const int64_t* given = nullptr;
  RandomKey drawn;

  __device__ RandomKey get() const {
    if (given == nullptr) return drawn;
    return {static_cast<uint64_t>(given[0]), static_cast<uint64_t>(given[1])};
  }
};

/// The tensors of a call and what its sequences share; q, k, v are [batch, sequence, heads, width], and the mask, which may be
/// absent, has four dims.
struct AttentionCall {
  const DenseTensor &q, &k, &v, &mask;
  Box q_box, k_box;
  bool causal;
  double scale, dropout;
  DropoutKey key;
  Sequences sequences;
};

/// The results of the forward op, of which softmax may be [0].
struct AttentionResults {
  DenseTensor &out, &softmax, &lse;
};
void attend(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results);

/// The same where other ranks may hold other keys: what all have is combined. Parts of 16-bit floats are rounded before.
void attend_to_all(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results);

/// As attend() where the tensor cores can; returns whether they did.
bool attend_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results);

/// The gradients, of which some may be absent; that of the bias has four dims.
struct AttentionGrads {
  const DenseTensor &q, &k, &v, &bias;
};
void attention_grads(const OpContext& ctx, const AttentionCall& call, const DenseTensor& out, const DenseTensor& lse,
                     const DenseTensor& out_grad, const AttentionGrads& grads);

/// Numbers, or rows of them, for each sequence, head and query. Dims of size 1 are broadcast.
template <class T>
struct PerQuery {
  T* data = nullptr;  // null where there are none
  int64_t sequence_step = 0, head_step = 0, query_step = 0;

  PerQuery() = default;
  /// x is [sequences, heads, queries, numbers], or has no last dim.
  explicit PerQuery(const DenseTensor& x) : data(elements<T>(x)) {
    const Dims& dims = x.dims();
    const int64_t row = dims.numel(3, dims.rank()), head = dims[2] * row;
    sequence_step = dims[0] == 1 ? 0 : dims[1] * head;
    head_step = dims[1] == 1 ? 0 : head;
    query_step = dims[2] == 1 ? 0 : row;
  }
  __device__ T* at(int64_t sequence, int64_t head, int64_t query) const {
    return data + sequence * sequence_step + head * head_step + query * query_step;
  }
};

/// Rows of a tensor [batch, sequence, heads, width].
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t rows = 0, heads = 0, width = 0;

  HeadRows() = default;
  explicit HeadRows(const DenseTensor& x)
      : data(elements<T>(x)), rows(x.dims()[1]), heads(x.dims()[2]), width(x.dims()[3]) {}
  __device__ T* at(int64_t batch, int64_t row, int64_t head) const {
    return data + ((batch * rows + row) * heads + head) * width;
  }
  __device__ int64_t step() const { return heads * width; }
};

/// Rows of one head, as many as are in a tile or fewer.
template <class T>
struct TileRows {
  T* data;
  int64_t step;
  int count;
  int64_t width;
};

/// A call as an argument of a kernel.
template <class T>
struct Attention {
  using C = math_t<T>;
  HeadRows<const T> q, k, v;
  PerQuery<const T> mask;  // [keys] for each head and query
  Sequences sequences;
  int64_t first_head, first_kv_head, group;  // local head 0 of q and of k; how many heads of q read one of k
  bool causal, drops;
  C scale, kept;  // what a kept weight is multiplied by
  float dropout;
  DropoutKey key;
  // The number of a weight, for dropout, is first_weight + ((batch * heads + head) * queries + query) * keys + key, with the sizes
  // of the whole tensors.
  int64_t first_weight, all_heads, all_queries, all_keys;

  explicit Attention(const AttentionCall& call) : q(call.q), k(call.k), v(call.v), sequences(call.sequences) {
    const Box &queries = call.q_box, &keys = call.k_box;
    if (call.mask.defined()) mask = PerQuery<const T>(call.mask);
    first_head = queries.begin[2];
    first_kv_head = keys.begin[2];
    all_heads = queries.global[2];
    all_queries = queries.global[1];
    all_keys = keys.global[1];
    group = all_heads / std::max<int64_t>(keys.global[2], 1);
    causal = call.causal;
    drops = call.dropout > 0;
    scale = static_cast<C>(call.scale);
    kept = static_cast<C>(1.0 / (1.0 - call.dropout));
    dropout = static_cast<float>(call.dropout);
    key = call.key;
    const int64_t row = (queries.begin[0] * all_heads + queries.begin[2]) * all_queries + queries.begin[1];
    first_weight = row * all_keys + keys.begin[1];
  }
};

/// One head of one sequence.
template <class T>
class Head {
 public:
  using C = math_t<T>;
  int64_t sequence, number;
  Sequence s;

  __device__ Head(const Attention<T>& a, int64_t of_sequence, int64_t head)
      : sequence(of_sequence), number(head), s(a.sequences[of_sequence]), a_(a),
        kv_head_((a.first_head + head) / a.group - a.first_kv_head) {
    const int64_t row = (s.batch * a.all_heads + head) * a.all_queries + s.first_query;
    first_weight_ = a.first_weight + row * a.all_keys + s.first_key;
  }

  /// How many keys query i may see; the last query sees most.
  __device__ int64_t visible(int64_t i) const {
    if (!a_.causal) return s.keys;
    const int64_t sees = i + s.diagonal + 1;
    return sees < 0 ? 0 : sees < s.keys ? sees : s.keys;
  }
  /// How many of the `most` keys from `start` on query i sees; none if there is no such query.
  __device__ int64_t visible_from(int64_t i, int64_t start, int64_t most) const {
    const int64_t sees = i < s.queries ? visible(i) - start : 0;
    return sees < 0 ? 0 : sees < most ? sees : most;
  }
  /// The first query that may see the key.
  __device__ int64_t first_query(int64_t key) const {
    return a_.causal && key > s.diagonal ? key - s.diagonal : int64_t{0};
  }
  /// Up to `most` rows of a tensor like q from query `first` on, or of one like k or v from key `first` on.
  template <class E>
  __device__ TileRows<E> of_queries(const HeadRows<E>& x, int64_t first, int most) const {
    const int64_t left = s.queries - first;
    return {x.at(s.batch, s.first_query + first, number), x.step(), left < most ? static_cast<int>(left) : most,
            x.width};
  }
  template <class E>
  __device__ TileRows<E> of_keys(const HeadRows<E>& x, int64_t first, int most) const {
    const int64_t left = s.keys - first;
    return {x.at(s.batch, s.first_key + first, kv_head_), x.step(), left < most ? static_cast<int>(left) : most,
            x.width};
  }
  /// The score of a product: -infinity where query i does not see key j.
  __device__ C score(C product, int64_t i, int64_t j) const {
    const C hidden = -INFINITY;
    if (i >= s.queries || j >= visible(i)) return hidden;
    product *= a_.scale;
    return a_.mask.data == nullptr ? product : masked(product, load(a_.mask.at(sequence, number, i)[j]));
  }
  /// What the mask has for query i and the keys from `start` on, null without a mask.
  __device__ const T* mask_of(int64_t i, int64_t start) const {
    return a_.mask.data == nullptr || i >= s.queries ? nullptr : a_.mask.at(sequence, number, i) + start;
  }
  /// A score with a number of the mask, of which -infinity hides the key, whatever the score is.
  static __device__ C masked(C score, C added) { return added == static_cast<C>(-INFINITY) ? added : score + added; }
  /// The first of the numbers of query i's weights.
  __device__ uint64_t weights_of(int64_t i) const { return static_cast<uint64_t>(first_weight_ + i * a_.all_keys); }
  /// What the weight with this number is multiplied by: 0 where it is dropped.
  __device__ C kept(PhiloxWords& words, uint64_t number) const {
    return uniform_fraction(words.at(number)) >= a_.dropout ? a_.kept : C(0);
  }

 private:
  const Attention<T>& a_;
  int64_t kv_head_, first_weight_;
};

}  // namespace shard::cuda
