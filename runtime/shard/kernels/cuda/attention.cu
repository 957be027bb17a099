// Attention on CUDA: blocks of keys with a running maximum and sum (Dao et al. 2022), so that no row of scores is stored.
#include "shard/kernels/cuda/attention.cuh"

#include "shard/kernels/cuda/attention_tile.cuh"
#include "shard/kernels/cuda/lines.cuh"

namespace shard::cuda {
namespace {

/// Where results go. `lse` and `softmax` are of all heads and queries; the latter may have no data.
template <class T>
struct Results {
  HeadRows<T> out;
  PerQuery<math_t<T>> lse;
  PerQuery<T> softmax;  // [keys]
};

/// The running maxima and sums of the rows of a thread, which all threads of a row have alike.
template <class C>
struct Running {
  C largest[kEach<C>], total[kEach<C>];
};

/// Multiplies weights by 0 where they are dropped, and by what keeps their sum where not.
template <class C, class T>
__device__ void drop(const Head<T>& head, RandomKey key, int64_t first, int64_t start,
                     C (&weights)[kEach<C>][kEach<C>]) {
  const int64_t row = first + tile_row() * kEach<C>, column = start + tile_column() * kEach<C>;
  PhiloxWords words(key);
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
    const uint64_t number = head.weights_of(row + i) + static_cast<uint64_t>(column);
#pragma unroll
    for (int j = 0; j < kEach<C>; ++j) weights[i][j] *= head.kept(words, number + static_cast<uint64_t>(j));
  }
}

/// Adds scores to the running maxima and sums, makes them weights, and scales the weighted values that there are.
template <int Groups, class C>
__device__ void accumulate(Running<C>& running, C (&scores)[kEach<C>][kEach<C>],
                           C (&sums)[kEach<C>][Groups * kEach<C>]) {
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
    C found = scores[i][0];
#pragma unroll
    for (int j = 1; j < kEach<C>; ++j) found = Larger()(found, scores[i][j]);
    const C largest = Larger()(running.largest[i], reduce_row(found, Larger()));
    const bool sees_none = largest == static_cast<C>(-INFINITY);
    C total = 0;
#pragma unroll
    for (int j = 0; j < kEach<C>; ++j) {
      scores[i][j] = sees_none ? C(0) : exp(scores[i][j] - largest);
      total += scores[i][j];
    }
    total = reduce_row(total, Plus());
    if (sees_none) continue;
    const C shrink = exp(running.largest[i] - largest);
    running.total[i] = running.total[i] * shrink + total;
    running.largest[i] = total != total ? total : largest;
    if (shrink == C(1)) continue;
#pragma unroll
    for (int c = 0; c < Groups * kEach<C>; ++c)  // what weighs nothing adds nothing, be it infinite
      sums[i][c] = shrink == C(0) ? C(0) : sums[i][c] * shrink;
  }
}

/// The weights before dropout of the queries from `first` on.
template <int Groups, class C, class T>
__device__ void store_softmax(const Attention<T>& a, const Head<T>& head, const TileJob& job, int64_t first,
                              const PerQuery<T>& to, const Running<C>& running, Stage<C, Groups>& stage) {
  const TileRows<const T> queries = head.of_queries(a.q, first, kTile<C>);
  const int row = tile_row() * kEach<C>, column = tile_column() * kEach<C>;
  for (int64_t start = 0; start < head.s.keys; start += kTile<C>) {
    C scores[kEach<C>][kEach<C>] = {};
    multiply_rows(stage, queries, head.of_keys(a.k, start, kTile<C>), scores);
    finish_scores(head, first, start, scores);
#pragma unroll
    for (int i = 0; i < kEach<C>; ++i) {
      if (row + i >= queries.count) continue;
      T* const line = to.at(job.sequence, job.head, first + row + i);
#pragma unroll
      for (int j = 0; j < kEach<C>; ++j) {
        if (start + column + j >= head.s.keys) continue;
        const bool is_hidden = scores[i][j] == static_cast<C>(-INFINITY) || running.total[i] == C(0);
        line[start + column + j] =
            store<T>(is_hidden ? C(0) : exp(scores[i][j] - running.largest[i]) / running.total[i]);
      }
    }
  }
}

/// The results of a tile of queries, in one slice of the columns of v.
template <int Groups, class C, class T>
__device__ void attend_tile(const Attention<T>& a, const TileJob& job, const Results<T>& results,
                            Stage<C, Groups>& stage, Weights<C>& weights) {
  const Head<T> head(a, job.sequence, job.head);
  const int64_t first = job.tile * kTile<C>, column = job.slice * Groups * kTile<C>;
  if (first >= head.s.queries) return;
  const TileRows<const T> queries = head.of_queries(a.q, first, kTile<C>);
  Running<C> running;
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
    running.largest[i] = -INFINITY;
    running.total[i] = 0;
  }
  C sums[kEach<C>][Groups * kEach<C>] = {};
  const int64_t end = head.visible(first + queries.count - 1);
  const RandomKey key = a.drops ? a.key.get() : RandomKey{};
  for (int64_t start = 0; start < end; start += kTile<C>) {
    C scores[kEach<C>][kEach<C>] = {};
    multiply_rows(stage, queries, head.of_keys(a.k, start, kTile<C>), scores);
    finish_scores(head, first, start, scores);
    accumulate<Groups>(running, scores, sums);
    if (a.drops) drop(head, key, first, start, scores);
    store_by_column<C>(weights, scores);
    add_weighted(stage, weights, head.of_keys(a.v, start, kTile<C>), column, sums);
  }
  store_sums<Groups>(sums, head.of_queries(results.out, first, kTile<C>), column,
                     [&](C sum, int i) { return running.total[i] == C(0) ? C(0) : sum / running.total[i]; });
  if (job.slice != 0) return;
  if (tile_column() == 0) {
    for (int i = 0; i < kEach<C> && tile_row() * kEach<C> + i < queries.count; ++i) {
      *results.lse.at(job.sequence, job.head, first + tile_row() * kEach<C> + i) =
          running.largest[i] + log(running.total[i]);
    }
  }
  if (results.softmax.data != nullptr) store_softmax(a, head, job, first, results.softmax, running, stage);
}

template <class T, int Groups>
__global__ void __launch_bounds__(kTileThreads, 2) attend_kernel(Attention<T> a, TileJobs jobs, Results<T> results) {
  using C = math_t<T>;
  SHARD_SHARED(stage, Stage<C, Groups>);
  SHARD_SHARED(weights, Weights<C>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x)
    attend_tile<Groups, C, T>(a, TileJob(jobs, number, a.causal), results, stage, weights);
}

template <class T>
void attend_of(const OpContext& ctx, const AttentionCall& call, const AttentionResults& to) {
  using C = math_t<T>;
  Results<T> results{HeadRows<T>(to.out), PerQuery<C>(to.lse), {}};
  if (to.softmax.dims().rank() == 4) results.softmax = PerQuery<T>(to.softmax);
  with_groups<C>(call.v.dims()[3], [&]<int Groups>(std::integral_constant<int, Groups>, int64_t slices) {
    const TileJobs jobs{divided_up(call.sequences.longest, kTile<C>), slices, call.q.dims()[2], call.sequences.count};
    if (jobs.count() > 0)
      launch(ctx, attend_kernel<T, Groups>, grid_of(jobs), kTileThreads, Attention<T>(call), jobs, results);
  });
}

}  // namespace

void attend(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results) {
  if (attend_by_tensor_cores(ctx, call, results)) return;
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    if (call.q.dtype() == dtype_of<T>) attend_of<device_t<T>>(ctx, call, results);
  });
}

}  // namespace shard::cuda
