// The gradients of attention (attention.h). Scores and weights are computed again, block by block.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_ATTENTION_GRAD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ATTENTION_GRAD_H
#undef SHARD_KERNELS_CPU_ATTENTION_GRAD_H
#else
#define SHARD_KERNELS_CPU_ATTENTION_GRAD_H
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

/// A sequence, the results of the forward op with their gradients, and where the gradients of its arguments go.
template <class T>
struct AttentionGrad {
  Attention<T> a;
  Rows<const T> out, out_grad;
  PerHead<const Statistic<T>> lse;
  Rows<T> q_grad, k_grad, v_grad;  // without data where they are not wanted

  bool of_queries() const { return q_grad.data != nullptr; }
  bool of_keys() const { return k_grad.data != nullptr || v_grad.data != nullptr; }
};

/// The rows of a gradient that may be unwanted.
template <class T>
Rows<T> grad_rows_of(const DenseTensor& x, int64_t batch, int64_t first) {
  return x.defined() ? rows_of<T>(x, batch, first) : Rows<T>{};
}

/// Scratch of one job of the gradient, for a block of queries and one of keys.
template <class F>
struct GradBlock : Block<F> {
  using C = Sum<F>;

  GradBlock(int64_t queries, int64_t keys, int64_t width, int64_t value_width)
      : Block<F>(queries, keys, width, value_width, true), grads(product_rows<F>(queries) * this->value_step),
        slopes(product_rows<F>(queries) * kKeys<F>),
        rounded_slopes(std::is_same_v<F, C> ? 0 : product_rows<F>(queries) * kKeys<F>) {}
  /// The gradients of the scores of row i as factors, in the place of the others where they are of the same type.
  F* factors(int64_t i) {
    if constexpr (std::is_same_v<F, C>) return slopes.get() + i * this->columns;
    else return rounded_slopes.get() + i * this->columns;
  }

  Buffer<F> grads;            // the gradients of the results, [row][value_step]
  Scratch<C> slopes;          // those of the weights, [row][columns]
  Scratch<F> rounded_slopes;  // those of the scores, [row][columns]
  C mean[kQueries];           // of a row's gradients of weights, which is subtracted from each of them
};

template <class T, class F>
void load_grads(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t rows, GradBlock<F>& block) {
  using C = Sum<F>;
  const int64_t all = product_rows<F>(rows);
  load_queries(g.a, h, first, rows, block);
  block.query.find_not_finite(rows * block.step);
  load_rows(g.out_grad, h, first, rows, all, block.grads.data.get(), block.value_step);
  block.grads.find_not_finite(rows * block.value_step);
  for (int64_t i = 0; i < rows; ++i) {
    const T *out = g.out.at(first + i, h), *grad = g.out_grad.at(first + i, h);
    block.mean[i] =
        sum_of<C>(g.a.value_width(), [=](int64_t d) { return static_cast<C>(grad[d]) * static_cast<C>(out[d]); });
  }
}

/// Makes the scores of row i and the gradients of its weights the weights, with dropout, and the gradients of the scores.
template <class T, class F>
void weigh_row(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t i, int64_t start, int64_t n,
               GradBlock<F>& block) {
  using C = Sum<F>;
  const Attention<T>& a = g.a;
  C *const scores = block.scores.get() + i * block.columns, *const slopes = block.slopes.get() + i * block.columns;
  F *const weights = block.weights(i), *const factors = block.factors(i);
  const C sum = *g.lse.at(h, first + i), mean = block.mean[i];
  const int64_t width = sum == lowest<C>() ? 0 : finish_scores(a, h, first + i, start, n, scores);
  std::fill(weights + width, weights + block.columns, F(0.0f));
  std::fill(factors + width, factors + block.columns, F(0.0f));
  if (std::isnan(sum)) {  // the query sees what is not finite
    for (int64_t j = 0; j < width; ++j) weights[j] = F(scores[j] == lowest<C>() ? C(0) : sum);
    for (int64_t j = 0; j < width; ++j) factors[j] = weights[j];
  } else if (a.dropout > 0) {
    for (int64_t j = 0; j < width; ++j) {
      const C weight = exp_of(scores[j] - sum), kept = a.kept(h, first + i, start + j);
      factors[j] = F(weight == C(0) ? C(0) : weight * (kept * slopes[j] - mean));
      weights[j] = F(weight * kept);
    }
  } else {
    slopes_of(scores, slopes, width, sum, mean, weights, factors);
  }
}

/// The weights and the gradients of the scores of keys [start, start + n) for the block's queries; both are 0 where a
/// query does not see a key. Returns the first row that they are there for, as score does.
template <class T, class F>
int64_t weigh(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
              GradBlock<F>& block) {
  const Attention<T>& a = g.a;
  const int64_t begin = score(a, h, first, rows, start, n, block), all = begin + product_rows<F>(rows - begin);
  const Buffer<F>& values = block.values.load(a.v, a.kv_head(h), start, a.keys);
  multiply_buffers<F>({all - begin, block.columns, block.value_step, false, true},
                      block.grads.data.get() + begin * block.value_step, values.data.get(),
                      block.slopes.get() + begin * block.columns, false);
  for (int64_t i = begin; i < rows; ++i) weigh_row(g, h, first, i, start, n, block);
  std::fill(block.weights(rows), block.weights(all), F(0.0f));
  std::fill(block.factors(rows), block.factors(all), F(0.0f));
  return begin;
}

/// Adds what keys [start, start + n) and the block's queries give the gradients of each other; null for those that are
/// not wanted. Those of q and k still lack the scale.
template <class T, class F>
void add_grads(const AttentionGrad<T>& g, int64_t h, int64_t first, int64_t rows, int64_t start, int64_t n,
               GradBlock<F>& block, Sum<F>* query_sums, Sum<F>* key_sums, Sum<F>* value_sums) {
  const int64_t begin = weigh(g, h, first, rows, start, n, block), seen = product_rows<F>(rows - begin),
                columns = block.columns, step = block.step, value_step = block.value_step;
  if (query_sums != nullptr) {
    Buffer<F>& keys = block.keys.load(g.a.k, g.a.kv_head(h), start, g.a.keys);
    add_weighted({seen, step, columns, false, false}, block.factors(begin), keys, 0, query_sums + begin * step);
  }
  if (key_sums != nullptr)
    add_weighted({columns, step, seen, true, false}, block.factors(begin), block.query, begin, key_sums);
  if (value_sums != nullptr)
    add_weighted({columns, value_step, seen, true, false}, block.weights(begin), block.grads, begin, value_sums);
}

/// The gradients of keys [from, to) of one head of k and v, for which `from` is a multiple of kKeys, and those of the
/// heads of q that read it, where they are wanted, which lack what other keys give. Those of keys are sums over these
/// heads and over their queries, in order, and those of queries over keys.
template <class T, class F>
void head_grads(const AttentionGrad<T>& g, int64_t head, int64_t from, int64_t to, bool of_queries,
                GradBlock<F>& block) {
  using C = Sum<F>;
  const Attention<T>& a = g.a;
  const bool of_keys = g.k_grad.data != nullptr, of_values = g.v_grad.data != nullptr;
  const int64_t step = block.step, value_step = block.value_step, keys = rounded_up(to - from, kBlockStep);
  const int64_t key_size = of_keys ? keys * step : 0, value_size = of_values ? keys * value_step : 0;
  const Scratch<C> query_sums(product_rows<F>(kQueries) * step), key_sums(key_size), value_sums(value_size);
  std::fill_n(key_sums.get(), key_size, C(0));
  std::fill_n(value_sums.get(), value_size, C(0));
  for (int64_t h = 0; h < a.q.heads; ++h) {
    if (a.kv_head(h) != head) continue;
    for (int64_t first = 0; first < a.queries; first += kQueries) {
      const int64_t rows = std::min(kQueries, a.queries - first), end = std::min(to, a.visible(first + rows - 1));
      if (end > from || of_queries) load_grads(g, h, first, rows, block);
      std::fill_n(query_sums.get(), product_rows<F>(rows) * step, C(0));
      for (int64_t start = from; start < end; start += kKeys<F>) {
        add_grads(g, h, first, rows, start, std::min(kKeys<F>, end - start), block,
                  of_queries ? query_sums.get() : nullptr, of_keys ? key_sums.get() + (start - from) * step : nullptr,
                  of_values ? value_sums.get() + (start - from) * value_step : nullptr);
      }
      if (of_queries) store_rows(query_sums.get(), step, rows, static_cast<C>(a.scale), g.q_grad, h, first);
    }
  }
  if (of_keys) store_rows(key_sums.get(), step, to - from, static_cast<C>(a.scale), g.k_grad, head, from);
  if (of_values) store_rows(value_sums.get(), value_step, to - from, C(1), g.v_grad, head, from);
}

/// The gradients of the block of queries of a head that begins at `first`, as head_grads finds them.
template <class T, class F>
void query_grads(const AttentionGrad<T>& g, int64_t h, int64_t first, GradBlock<F>& block) {
  using C = Sum<F>;
  const Attention<T>& a = g.a;
  const int64_t rows = std::min(kQueries, a.queries - first), end = a.visible(first + rows - 1);
  const Scratch<C> sums(product_rows<F>(rows) * block.step);
  std::fill_n(sums.get(), product_rows<F>(rows) * block.step, C(0));
  load_grads(g, h, first, rows, block);
  for (int64_t start = 0; start < end; start += kKeys<F>)
    add_grads<T, F>(g, h, first, rows, start, std::min(kKeys<F>, end - start), block, sums.get(), nullptr, nullptr);
  store_rows(sums.get(), block.step, rows, static_cast<C>(a.scale), g.q_grad, h, first);
}

/// A part of the gradients that one thread computes.
template <class T>
struct GradJob {
  const AttentionGrad<T>* g;
  enum { whole, keys, queries } part;
  int64_t head, first;  // of k and v, or of q; the first key or query
};

/// The jobs for `count` heads of k and v: one for each, or parts, which compute weights twice, 7 products instead of 5,
/// where heads do not keep the threads busy. Results have the same bits. The gradients of queries alone are parts, too.
template <class F, class T>
std::vector<GradJob<T>> grad_jobs(const std::vector<AttentionGrad<T>>& all, int64_t count) {
  const int64_t available = threads();
  const bool is_even = 7 * count >= 5 * available * ((count + available - 1) / available);
  std::vector<GradJob<T>> jobs;
  for (const AttentionGrad<T>& g : all) {
    const bool divides = !is_even || !g.of_keys();
    for (int64_t head = 0; head < g.a.k.heads; ++head) {
      if (!divides) jobs.push_back({&g, GradJob<T>::whole, head, 0});
      for (int64_t first = 0; divides && g.of_keys() && first < g.a.keys; first += kKeys<F>)
        jobs.push_back({&g, GradJob<T>::keys, head, first});
    }
    for (int64_t h = 0; divides && g.of_queries() && h < g.a.q.heads; ++h)
      for (int64_t first = 0; first < g.a.queries; first += kQueries)
        jobs.push_back({&g, GradJob<T>::queries, h, first});
  }
  return jobs;
}

/// The gradients of all sequences that are wanted.
template <class T>
void attention_grads(const std::vector<AttentionGrad<T>>& all) {
  if (all.empty()) return;
  int64_t cost = 0, rows = 0, most = 0;
  for (const AttentionGrad<T>& one : all) {
    cost += one.a.queries * one.a.q.heads * one.a.keys * (one.a.width() + one.a.value_width());
    rows = std::max(rows, std::min(kQueries, one.a.queries));
    most = std::max(most, one.a.keys);
  }
  with_factors<T>([&]<class F>() {
    const std::vector<GradJob<T>> jobs = grad_jobs<F>(all, static_cast<int64_t>(all.size()) * all[0].a.k.heads);
    const auto count = static_cast<int64_t>(jobs.size());
    parallel_for(count, cost / std::max<int64_t>(count, 1), [&](int64_t begin, int64_t end) {
      GradBlock<F> block(rows, most, all[0].a.width(), all[0].a.value_width());
      for (int64_t i = begin; i < end; ++i) {
        const GradJob<T>& job = jobs[size_t(i)];
        const int64_t keys = job.g->a.keys;
        if (job.part == GradJob<T>::whole) head_grads(*job.g, job.head, 0, keys, job.g->of_queries(), block);
        else if (job.part == GradJob<T>::keys)
          head_grads(*job.g, job.head, job.first, std::min(keys, job.first + kKeys<F>), false, block);
        else query_grads(*job.g, job.head, job.first, block);
      }
    });
  });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SHARD_KERNELS_CPU_ATTENTION_GRAD_H
