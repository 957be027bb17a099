// Attention of the queries of one sequence to its keys, for flash_attn and the ops of attention.yaml: blocks of keys with
// a running maximum and sum (Dao et al. 2022), so that no row of scores is stored. A row of results depends only on its
// own query and on the keys that it sees, bit for bit, however queries, heads and sequences are sharded.
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
#include <vector>

#include "shard/kernels/cpu/attention_block.h"
#include "shard/kernels/cpu/attention_rows.h"
#include "shard/kernels/cpu/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// Adds keys to the running maximum and sum of row i of the block, and makes their scores weights.
template <class T, class F>
void accumulate_row(const Attention<T>& a, int64_t h, int64_t first, int64_t i, int64_t start, int64_t n,
                    Block<F>& block) {
  using C = Sum<F>;
  C* const scores = block.scores.get() + i * block.columns;
  F* const weights = block.weights(i);
  const int64_t width = finish_scores(a, h, first + i, start, n, scores);
  const C largest = Larger()(block.largest[i], largest_of(scores, width));
  if (largest == lowest<C>()) {  // no key is visible yet
    std::fill_n(weights, block.columns, F(0.0f));
    return;
  }
  C total;
  if (a.dropout > 0) {
    total = exponentials<F>(scores, width, largest, scores);
    for (int64_t j = 0; j < width; ++j) scores[j] *= a.kept(h, first + i, start + j);
    for (int64_t j = 0; j < width; ++j) weights[j] = F(scores[j]);
  } else {
    total = exponentials<F>(scores, width, largest, weights);
  }
  std::fill(weights + width, weights + block.columns, F(0.0f));
  const C shrink = exp_of(block.largest[i] - largest);
  block.total[i] = block.total[i] * shrink + total;
  block.largest[i] = std::isnan(total) ? total : largest;
  if (shrink == C(1)) return;
  C* sums = block.sums.get() + i * block.value_step;
  if (shrink == C(0)) {  // what weighs nothing adds nothing, be it infinite
    std::fill_n(sums, block.value_step, C(0));
    return;
  }
  for (int64_t d = 0; d < block.value_step; ++d) sums[d] *= shrink;
}

/// Adds the block's keys to the running maximum, sum and weighted values of each query.
template <class T, class F>
void accumulate(const Attention<T>& a, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
                Block<F>& block) {
  const int64_t begin = score(a, h, first, rows, start, n, block);
  Buffer<F>& values = block.values.load(a.v, a.kv_head(h), start, a.keys);
  for (int64_t i = begin; i < rows; ++i) accumulate_row(a, h, first, i, start, n, block);
  add_weighted({product_rows<F>(rows - begin), block.value_step, block.columns, false, false}, block.weights(begin),
               values, 0, block.sums.get() + begin * block.value_step);
}

/// A sequence and where its results go.
template <class T>
struct Attended {
  Attention<T> a;
  Rows<T> out;
  PerHead<T> softmax;  // [keys] for each head and query, or none
  PerHead<Statistic<T>> lse;
};

template <class T, class F>
void store_softmax(const Attended<T>& to, int64_t h, int64_t first, int64_t rows, Block<F>& block) {
  using C = Sum<F>;
  const Attention<T>& a = to.a;
  for (int64_t start = 0; start < a.keys; start += kKeys<F>) {
    const int64_t n = std::min(kKeys<F>, a.keys - start);
    const int64_t begin = score(a, h, first, rows, start, n, block);
    for (int64_t i = 0; i < rows; ++i) {
      T* weights = to.softmax.at(h, first + i) + start;
      C* scores = block.scores.get() + i * block.columns;
      const bool none = i < begin || block.total[i] == C(0);
      const int64_t width = none ? 0 : std::min(n, finish_scores(a, h, first + i, start, n, scores));
      for (int64_t j = 0; j < width; ++j) weights[j] = T(exp_of(scores[j] - block.largest[i]) / block.total[i]);
      std::fill(weights + width, weights + n, T(C(0)));
    }
  }
}

/// The maxima, sums and weighted values of the block of queries of a head that begins at `first`, over the keys here.
/// Weighted values of a row are arbitrary until it sees a key, which makes them 0.
template <class T, class F>
void attend(const Attention<T>& a, int64_t h, int64_t first, Block<F>& block) {
  using C = Sum<F>;
  const int64_t rows = std::min(kQueries, a.queries - first);
  load_queries(a, h, first, rows, block);
  std::fill_n(block.largest, rows, lowest<C>());
  std::fill_n(block.total, rows, C(0));
  const int64_t end = a.visible(first + rows - 1);
  for (int64_t start = 0; start < end; start += kKeys<F>)
    accumulate(a, h, first, rows, start, std::min(kKeys<F>, end - start), block);
}

/// The results of these queries, whose maxima, sums and weighted values are complete.
template <class T, class F>
void store_results(const Attended<T>& to, int64_t h, int64_t first, Block<F>& block) {
  using C = Sum<F>;
  const Attention<T>& a = to.a;
  const int64_t rows = std::min(kQueries, a.queries - first);
  for (int64_t i = 0; i < rows; ++i) {
    const C total = block.total[i];
    const C* sums = block.sums.get() + i * block.value_step;
    T* out = to.out.at(first + i, h);
    if (total == C(0)) std::fill_n(out, a.value_width(), T(C(0)));
    else
      for (int64_t d = 0; d < a.value_width(); ++d) out[d] = T(sums[d] / total);
    *to.lse.at(h, first + i) = block.largest[i] + std::log(total);
  }
  if (to.softmax.data != nullptr) store_softmax(to, h, first, rows, block);
}

/// Calls body(sequence, head, first query, block) for each block of queries, on several threads. All sequences have the
/// same heads and widths.
template <class F, class T, class Body>
void for_blocks(const std::vector<Attended<T>>& all, const Body& body) {
  struct Job {
    const Attended<T>* to;
    int64_t head, first;
  };
  std::vector<Job> jobs;
  int64_t rows = 0, keys = 0, cost = 0;
  for (const Attended<T>& one : all) {
    const Attention<T>& a = one.a;
    rows = std::max(rows, std::min(kQueries, a.queries));
    keys = std::max(keys, a.keys);
    cost += a.queries * a.q.heads * a.keys * (a.width() + a.value_width()) / 4;
    for (int64_t h = 0; h < a.q.heads; ++h)
      for (int64_t first = 0; first < a.queries; first += kQueries) jobs.push_back({&one, h, first});
  }
  if (jobs.empty()) return;
  const auto count = static_cast<int64_t>(jobs.size());
  parallel_for(count, cost / count, [&](int64_t begin, int64_t end) {
    Block<F> block(rows, keys, all[0].a.width(), all[0].a.value_width());
    for (int64_t i = begin; i < end; ++i) body(*jobs[size_t(i)].to, jobs[size_t(i)].head, jobs[size_t(i)].first, block);
  });
}

/// The results of all sequences.
template <class T>
void attend_all(const std::vector<Attended<T>>& all) {
  with_factors<T>([&]<class F>() {
    for_blocks<F>(all, [](const Attended<T>& to, int64_t h, int64_t first, Block<F>& block) {
      attend(to.a, h, first, block);
      store_results(to, h, first, block);
    });
  });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ATTENTION_H
