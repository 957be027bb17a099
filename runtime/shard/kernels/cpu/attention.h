// Attention of the queries of one sequence to its keys, and its gradients, for flash_attn and the ops of
// attention.yaml: blocks of keys with a running maximum and sum (Dao et al. 2022), so that no row of scores is stored.
// A row of results depends only on its own query and on the keys that it sees, bit for bit, however queries, heads and
// sequences are sharded.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_ATTENTION_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ATTENTION_H
#undef SHARD_KERNELS_CPU_ATTENTION_H
#else
#define SHARD_KERNELS_CPU_ATTENTION_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shard/core/op_context.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/product.h"
#include "shard/kernels/cpu/transpose.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

constexpr int64_t kQueries = 256;  // rows of a job
constexpr int64_t kKeys = 64;      // columns that are scored at once

/// `width` rounded up to a multiple of kProductColumns: the step of rows in buffers.
inline int64_t padded(int64_t width) { return (width + kProductColumns - 1) / kProductColumns * kProductColumns; }

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

/// A number in a buffer that is not finite.
template <class C>
struct NotFinite {
  int64_t at;
  C value;
};

/// Rows of numbers in a buffer, which are added up with weights.
template <class C>
struct Buffer {
  explicit Buffer(int64_t size) : data(static_cast<size_t>(size)) {}
  /// To be called when `n` numbers have been loaded and are to be added up.
  void find_not_finite(int64_t n) {
    not_finite.clear();
    int found = 0;
    for (int64_t i = 0; i < n; ++i) found |= !(std::abs(data[size_t(i)]) <= std::numeric_limits<C>::max());
    if (found == 0) return;
    for (int64_t i = 0; i < n; ++i) {
      const C value = data[size_t(i)];
      if (!(std::abs(value) <= std::numeric_limits<C>::max())) not_finite.push_back({i, value});
    }
  }

  std::vector<C> data;
  std::vector<NotFinite<C>> not_finite;
};

/// out += weights * the `depth` rows of `factors` from row `first` on; rows of factors and of out are `step` apart.
/// What has weight 0 adds nothing, even if it is not finite: a query must not see what is hidden from it.
template <class C>
void add_weighted(int64_t rows, int64_t depth, const Strided<C>& weights, Buffer<C>& factors, int64_t first,
                  int64_t step, C* out) {
  for (const NotFinite<C>& one : factors.not_finite) factors.data[size_t(one.at)] = C(0);
  add_product<C>(rows, step, depth, weights, factors.data.data() + first * step, step, out, step);
  for (const NotFinite<C>& one : factors.not_finite) {
    factors.data[size_t(one.at)] = one.value;
    const int64_t k = one.at / step - first, column = one.at % step;
    if (k < 0 || k >= depth) continue;
    for (int64_t i = 0; i < rows; ++i) {
      const C weight = weights.data[i * weights.row_step + k * weights.column_step];
      if (weight != C(0)) out[i * step + column] += weight * one.value;
    }
  }
}

/// Scratch for a block of queries of one head.
template <class C>
struct Block {
  Block(int64_t queries, int64_t width, int64_t value_width)
      : step(padded(width)), value_step(padded(value_width)), query(queries * step), rows(kKeys * step),
        keys(size_t(step * kKeys)), values(kKeys * value_step), sums(size_t(queries * value_step)),
        scores(size_t(queries * kKeys)) {}
  int64_t step, value_step;
  Buffer<C> query;        // [row][step], scaled
  Buffer<C> rows;         // [key][step]
  std::vector<C> keys;    // the same transposed, [step][kKeys]
  Buffer<C> values;       // [key][value_step]
  std::vector<C> sums;    // [row][value_step]
  std::vector<C> scores;  // [row][kKeys]
  C largest[kQueries], total[kQueries];
};

/// `n` rows of a head from row `first` on, in a buffer. The padding is not touched: it stays 0.
template <class T, class C>
void load_rows(const Rows<const T>& from, int64_t head, int64_t first, int64_t n, C* to, int64_t to_step) {
  for (int64_t i = 0; i < n; ++i) {
    const T* row = from.at(first + i, head);
    for (int64_t d = 0; d < from.width; ++d) to[i * to_step + d] = static_cast<C>(row[d]);
  }
}

/// Stores `n` rows of a buffer as rows of a head.
template <class T, class C>
void store_rows(const std::vector<C>& from, int64_t from_step, int64_t n, C factor, const Rows<T>& to, int64_t head,
                int64_t first) {
  for (int64_t i = 0; i < n; ++i) {
    T* row = to.at(first + i, head);
    for (int64_t d = 0; d < to.width; ++d) row[d] = T(from[size_t(i * from_step + d)] * factor);
  }
}

template <class T, class C>
void load_queries(const Attention<T>& a, int64_t h, int64_t first, int64_t rows, Block<C>& block) {
  load_rows(a.q, h, first, rows, block.query.data.data(), block.step);
  const C scale = static_cast<C>(a.scale);
  for (int64_t i = 0; i < rows * block.step; ++i) block.query.data[size_t(i)] *= scale;
}

/// The scores of keys [start, start + n) for the block's queries; -infinity for masked keys and from
/// n on. Returns the first row that sees one of the keys. Rows before it are not computed.
template <class T, class C>
int64_t score(const Attention<T>& a, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
              Block<C>& block) {
  load_rows(a.k, a.kv_head(h), start, n, block.rows.data.data(), block.step);
  transpose_matrix(block.rows.data.data(), block.step, block.keys.data(), kKeys, kKeys, block.step);
  const int64_t begin = std::min(a.first_query(first, start) - first, rows);
  std::fill(block.scores.data() + begin * kKeys, block.scores.data() + rows * kKeys, C(0));
  add_product<C>(rows - begin, kKeys, a.width(), {block.query.data.data() + begin * block.step, block.step, 1},
                 block.keys.data(), kKeys, block.scores.data() + begin * kKeys, kKeys);
  for (int64_t i = begin; i < rows; ++i) {
    C* scores = block.scores.data() + i * kKeys;
    if (a.mask.data != nullptr) {
      const T* mask = a.mask.at(h, first + i) + start;
      for (int64_t j = 0; j < n; ++j) scores[j] += static_cast<C>(mask[j]);
      // Also where the score was not finite. A loop of its own vectorises.
      for (int64_t j = 0; j < n; ++j) scores[j] = static_cast<C>(mask[j]) == lowest<C>() ? lowest<C>() : scores[j];
    }
    const int64_t visible = std::clamp<int64_t>(a.visible(first + i) - start, 0, n);
    std::fill(scores + visible, scores + kKeys, lowest<C>());
  }
  return begin;
}

/// Adds the block's keys to the running maximum, sum and weighted values of each query.
template <class T, class C>
void accumulate(const Attention<T>& a, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
                Block<C>& block) {
  const int64_t begin = score(a, h, first, rows, start, n, block);
  load_rows(a.v, a.kv_head(h), start, n, block.values.data.data(), block.value_step);
  block.values.find_not_finite(n * block.value_step);
  for (int64_t i = begin; i < rows; ++i) {
    C* scores = block.scores.data() + i * kKeys;
    const auto score_of = [=](int64_t j) { return scores[j]; };
    const C largest = fold(kKeys, block.largest[i], score_of, Larger());
    if (largest == lowest<C>()) {  // no key is visible yet
      std::fill_n(scores, kKeys, C(0));
      continue;
    }
    const C shrink = exp_of(block.largest[i] - largest);
    block.largest[i] = largest;
    for (int64_t j = 0; j < kKeys; ++j) scores[j] = exp_of(scores[j] - largest);
    block.total[i] = block.total[i] * shrink + sum_of<C>(kKeys, [=](int64_t j) { return scores[j]; });
    if (a.dropout > 0)
      for (int64_t j = 0; j < n; ++j) scores[j] *= a.kept(h, first + i, start + j);
    C* sums = block.sums.data() + i * block.value_step;
    for (int64_t d = 0; d < block.value_step; ++d) sums[d] *= shrink;
  }
  add_weighted<C>(rows - begin, n, {block.scores.data() + begin * kKeys, kKeys, 1}, block.values, 0, block.value_step,
                  block.sums.data() + begin * block.value_step);
}

/// A sequence and where its results go.
template <class T>
struct Attended {
  Attention<T> a;
  Rows<T> out;
  PerHead<T> softmax;  // [keys] for each head and query, or none
  PerHead<Statistic<T>> lse;
};

template <class T>
void store_softmax(const Attended<T>& to, int64_t h, int64_t first, int64_t rows, Block<Compute<T>>& block) {
  using C = Compute<T>;
  const Attention<T>& a = to.a;
  for (int64_t start = 0; start < a.keys; start += kKeys) {
    const int64_t n = std::min(kKeys, a.keys - start);
    const int64_t begin = score(a, h, first, rows, start, n, block);
    for (int64_t i = 0; i < rows; ++i) {
      T* weights = to.softmax.at(h, first + i) + start;
      for (int64_t j = 0; j < n; ++j) {
        weights[j] = i < begin || block.total[i] == C(0)
                         ? T(C(0))
                         : T(exp_of(block.scores[size_t(i * kKeys + j)] - block.largest[i]) / block.total[i]);
      }
    }
  }
}

/// The maxima, sums and weighted values of the block of queries of a head that begins at `first`, over the keys here.
template <class T>
void attend(const Attention<T>& a, int64_t h, int64_t first, Block<Compute<T>>& block) {
  using C = Compute<T>;
  const int64_t rows = std::min(kQueries, a.queries - first);
  load_queries(a, h, first, rows, block);
  std::fill_n(block.sums.data(), rows * block.value_step, C(0));
  std::fill_n(block.largest, rows, lowest<C>());
  std::fill_n(block.total, rows, C(0));
  const int64_t end = a.visible(first + rows - 1);
  for (int64_t start = 0; start < end; start += kKeys)
    accumulate(a, h, first, rows, start, std::min(kKeys, end - start), block);
}

/// The results of these queries, whose maxima, sums and weighted values are complete.
template <class T>
void store_results(const Attended<T>& to, int64_t h, int64_t first, Block<Compute<T>>& block) {
  using C = Compute<T>;
  const Attention<T>& a = to.a;
  const int64_t rows = std::min(kQueries, a.queries - first);
  for (int64_t i = 0; i < rows; ++i) {
    const C total = block.total[i];
    T* out = to.out.at(first + i, h);
    for (int64_t d = 0; d < a.value_width(); ++d)
      out[d] = total == C(0) ? T(C(0)) : T(block.sums[size_t(i * block.value_step + d)] / total);
    *to.lse.at(h, first + i) = block.largest[i] + std::log(total);
  }
  if (to.softmax.data != nullptr) store_softmax(to, h, first, rows, block);
}

/// Calls body(sequence, head, first query, block) for each block of queries, on several threads. All sequences have the
/// same heads and widths.
template <class T, class Body>
void for_blocks(const std::vector<Attended<T>>& all, const Body& body) {
  struct Job {
    const Attended<T>* to;
    int64_t head, first;
  };
  std::vector<Job> jobs;
  int64_t rows = 0, cost = 0;
  for (const Attended<T>& one : all) {
    const Attention<T>& a = one.a;
    rows = std::max(rows, std::min(kQueries, a.queries));
    cost += a.queries * a.q.heads * a.keys * (a.width() + a.value_width()) / 4;
    for (int64_t h = 0; h < a.q.heads; ++h)
      for (int64_t first = 0; first < a.queries; first += kQueries) jobs.push_back({&one, h, first});
  }
  if (jobs.empty()) return;
  const auto count = static_cast<int64_t>(jobs.size());
  parallel_for(count, cost / count, [&](int64_t begin, int64_t end) {
    Block<Compute<T>> block(rows, all[0].a.width(), all[0].a.value_width());
    for (int64_t i = begin; i < end; ++i) body(*jobs[size_t(i)].to, jobs[size_t(i)].head, jobs[size_t(i)].first, block);
  });
}

/// The results of all sequences.
template <class T>
void attend_all(const std::vector<Attended<T>>& all) {
  for_blocks(all, [](const Attended<T>& to, int64_t h, int64_t first, Block<Compute<T>>& block) {
    attend(to.a, h, first, block);
    store_results(to, h, first, block);
  });
}

/// A sequence, the results of the forward op with their gradients, and where the gradients of its arguments go.
template <class T>
struct AttentionGrad {
  Attention<T> a;
  Rows<const T> out, out_grad;
  PerHead<const Statistic<T>> lse;
  Rows<T> q_grad, k_grad, v_grad;
};

/// Scratch of one job of the gradient, for a block of queries and one of keys.
template <class C>
struct GradBlock : Block<C> {
  GradBlock(int64_t queries, int64_t width, int64_t value_width)
      : Block<C>(queries, width, value_width), columns(size_t(this->value_step * kKeys)),
        grads(queries * this->value_step), slopes(size_t(queries * kKeys)) {}
  std::vector<C> columns;  // the values transposed, [value_step][kKeys]
  Buffer<C> grads;         // the gradients of the results, [row][value_step]
  std::vector<C> slopes;   // the gradients of the scores, [row][kKeys]; `scores` are the factors of the values then
  C mean[kQueries];        // of a row's gradients of weights, which is subtracted from each of them
};

template <class T, class C>
void load_grads(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t rows, GradBlock<C>& block) {
  load_queries(g.a, h, first, rows, block);
  block.query.find_not_finite(rows * block.step);
  load_rows(g.out_grad, h, first, rows, block.grads.data.data(), block.value_step);
  block.grads.find_not_finite(rows * block.value_step);
  for (int64_t i = 0; i < rows; ++i) {
    const T* out = g.out.at(first + i, h);
    const C* grad = block.grads.data.data() + i * block.value_step;
    block.mean[i] = sum_of<C>(g.a.value_width(), [=](int64_t d) { return grad[d] * static_cast<C>(out[d]); });
  }
}

/// The weights and the gradients of the scores of keys [start, start + n) for the block's queries; both are 0 where a
/// query does not see a key. Returns the first row that sees one of the keys, as score does.
template <class T, class C>
int64_t weigh(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
              GradBlock<C>& block) {
  const Attention<T>& a = g.a;
  const int64_t begin = score(a, h, first, rows, start, n, block);
  block.rows.find_not_finite(n * block.step);
  load_rows(a.v, a.kv_head(h), start, n, block.values.data.data(), block.value_step);
  transpose_matrix(block.values.data.data(), block.value_step, block.columns.data(), kKeys, kKeys, block.value_step);
  std::fill(block.slopes.data() + begin * kKeys, block.slopes.data() + rows * kKeys, C(0));
  add_product<C>(rows - begin, kKeys, a.value_width(),
                 {block.grads.data.data() + begin * block.value_step, block.value_step, 1}, block.columns.data(), kKeys,
                 block.slopes.data() + begin * kKeys, kKeys);
  for (int64_t i = begin; i < rows; ++i) {
    C *weights = block.scores.data() + i * kKeys, *slopes = block.slopes.data() + i * kKeys;
    const C sum = *g.lse.at(h, first + i);
    if (sum == lowest<C>()) {  // no key is visible
      std::fill_n(weights, kKeys, C(0));
      std::fill_n(slopes, kKeys, C(0));
      continue;
    }
    if (std::isnan(sum)) {  // the query sees what is not finite
      for (int64_t j = 0; j < kKeys; ++j) weights[j] = weights[j] == lowest<C>() ? C(0) : sum;
    } else {
      for (int64_t j = 0; j < kKeys; ++j) weights[j] = exp_of(weights[j] - sum);
    }
    const C mean = block.mean[i];
    if (a.dropout > 0) {
      for (int64_t j = 0; j < n; ++j) {
        const C kept = a.kept(h, first + i, start + j);
        slopes[j] = weights[j] == C(0) ? C(0) : weights[j] * (kept * slopes[j] - mean);
        weights[j] *= kept;
      }
    } else {
      for (int64_t j = 0; j < kKeys; ++j) slopes[j] = weights[j] * (slopes[j] - mean);
      for (int64_t j = 0; j < kKeys; ++j) slopes[j] = weights[j] == C(0) ? C(0) : slopes[j];
    }
  }
  return begin;
}

/// The gradients of one head of k and v and of the heads of q that read it. Those of keys are sums
/// over these heads and over their queries, in order.
template <class T>
void head_grads(const AttentionGrad<T>& g, int64_t head) {
  using C = Compute<T>;
  const Attention<T>& a = g.a;
  GradBlock<C> block(std::min(kQueries, a.queries), a.width(), a.value_width());
  const int64_t step = block.step, value_step = block.value_step;
  std::vector<C> query_sums(block.query.data.size()), key_sums(size_t(a.keys * step)),
      value_sums(size_t(a.keys * value_step));
  for (int64_t h = 0; h < a.q.heads; ++h) {
    if (a.kv_head(h) != head) continue;
    for (int64_t first = 0; first < a.queries; first += kQueries) {
      const int64_t rows = std::min(kQueries, a.queries - first), end = a.visible(first + rows - 1);
      load_grads(g, h, first, rows, block);
      std::fill(query_sums.begin(), query_sums.end(), C(0));
      for (int64_t start = 0; start < end; start += kKeys) {
        const int64_t n = std::min(kKeys, end - start);
        const int64_t begin = weigh(g, h, first, rows, start, n, block), seen = rows - begin;
        const C *slopes = block.slopes.data() + begin * kKeys, *weights = block.scores.data() + begin * kKeys;
        add_weighted<C>(seen, n, {slopes, kKeys, 1}, block.rows, 0, step, query_sums.data() + begin * step);
        add_weighted<C>(n, seen, {slopes, 1, kKeys}, block.query, begin, step,
                        key_sums.data() + start * step);  // query is scaled
        add_weighted<C>(n, seen, {weights, 1, kKeys}, block.grads, begin, value_step,
                        value_sums.data() + start * value_step);
      }
      store_rows(query_sums, step, rows, static_cast<C>(a.scale), g.q_grad, h, first);
    }
  }
  store_rows(key_sums, step, a.keys, C(1), g.k_grad, head, 0);
  store_rows(value_sums, value_step, a.keys, C(1), g.v_grad, head, 0);
}

/// The gradients of all sequences.
template <class T>
void attention_grads(const std::vector<AttentionGrad<T>>& all) {
  if (all.empty()) return;
  const int64_t heads = all[0].a.k.heads, count = static_cast<int64_t>(all.size()) * heads;
  int64_t cost = 0;
  for (const AttentionGrad<T>& one : all)
    cost += one.a.queries * one.a.q.heads * one.a.keys * (one.a.width() + one.a.value_width());
  parallel_for(count, cost / std::max<int64_t>(count, 1), [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) head_grads(all[size_t(job / heads)], job % heads);
  });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ATTENTION_H
