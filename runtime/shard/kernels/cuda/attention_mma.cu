// Attention of 16-bit floats on CUDA by the tensor cores. What attention.cu says of maxima and sums holds here too.
#include "shard/kernels/cuda/attention_mma.cuh"
#include "shard/kernels/cuda/attention_tile.cuh"

namespace shard::cuda {
namespace {

constexpr int kKeys = 64;  // that are in shared memory at once

template <int Width>
struct KeyStage {
  TermStage<Width, kKeys> keys, values;
};

/// What is known of the two rows of a lane.
template <int Width>
struct WarpRows {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  LaneTile<Width> sums = {};

  __device__ WarpRows() {}
};

/// Makes products scores of the queries from `first` on, the first of the warp, and the keys from `start` on.
template <class T>
__device__ void finish_products(const Head<T>& head, int64_t first, int64_t start, LaneTile<kKeys>& scores) {
  const LanePlace lane;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      scores[n][c] = head.score(scores[n][c], first + lane.g + c / 2 * 8, start + n * 8 + lane.t * 2 + c % 2);
  }
}

/// Adds scores to the running maxima and sums, makes them weights, and scales the weighted values that there are.
template <int Width>
__device__ void accumulate(WarpRows<Width>& rows, LaneTile<kKeys>& scores) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = rows.largest[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
      largest = Larger()(largest, Larger()(scores[n][2 * half], scores[n][2 * half + 1]));
    largest = Larger()(largest, shuffle_xor(largest, 1));
    largest = Larger()(largest, shuffle_xor(largest, 2));
    const bool sees_none = largest == -INFINITY;
    float total = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; ++c) {
        scores[n][c] = sees_none ? 0.0f : exp(scores[n][c] - largest);
        total += scores[n][c];
      }
    }
    total += shuffle_xor(total, 1);
    total += shuffle_xor(total, 2);
    if (sees_none) continue;
    const float shrink = exp(rows.largest[half] - largest);
    rows.total[half] = rows.total[half] * shrink + total;
    rows.largest[half] = total != total ? total : largest;
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; ++c)  // what weighs nothing adds nothing, be it infinite
        rows.sums[n][c] = shrink == 0.0f ? 0.0f : rows.sums[n][c] * shrink;
    }
  }
}

template <class T>
__device__ void drop(const Head<T>& head, RandomKey key, int64_t first, int64_t start, LaneTile<kKeys>& weights) {
  const LanePlace lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    PhiloxWords words(key);
    const uint64_t number = head.weights_of(first + lane.g + half * 8) + static_cast<uint64_t>(start + lane.t * 2);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        weights[n][2 * half + c] *= head.kept(words, number + static_cast<uint64_t>(n * 8 + c));
    }
  }
}

template <class T>
struct MmaResults {
  HeadRows<T> out;
  PerQuery<float> lse;
};

template <class T, int Width>
__device__ void attend_tile(const Attention<T>& a, const TileJob& job, const MmaResults<T>& results, bool is_aligned,
                            KeyStage<Width>& stage) {
  const Head<T> head(a, job.sequence, job.head);
  const int64_t first = job.tile * kMmaRows;
  if (first >= head.s.queries) return;
  const TileRows<const T> queries = head.of_queries(a.q, first, kMmaRows);
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16;  // the first of the warp
  RowFactors<Width> factors;
  load_factors<Width>(factors, queries, row);
  WarpRows<Width> rows;
  const int64_t end = head.visible(first + queries.count - 1);
  const RandomKey key = a.drops ? a.key.get() : RandomKey{};
  for (int64_t start = 0; start < end; start += kKeys) {
    __syncthreads();  // what was in the stage has been read
    load_terms(stage.keys, head.of_keys(a.k, start, kKeys), is_aligned);
    const bool found = load_terms(stage.values, head.of_keys(a.v, start, kKeys), is_aligned);
    const bool any_found = __syncthreads_or(found);
    LaneTile<kKeys> scores = {};
    multiply_terms<T>(factors, stage.keys, a.q.width, scores);
    finish_products(head, first + row, start, scores);
    accumulate(rows, scores);
    if (a.drops) drop(head, key, first + row, start, scores);
    if (any_found) add_terms_that_weigh<T>(rows.sums, scores, stage.values);
    else add_terms<T>(rows.sums, scores, stage.values, a.v.width);
  }
  store_tile<Width>(rows.sums, head.of_queries(results.out, first, kMmaRows), row,
                    [&](float sum, int half) { return rows.total[half] == 0.0f ? 0.0f : sum / rows.total[half]; });
  const LanePlace lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + lane.g + half * 8;
    if (lane.t == 0 && at < queries.count)
      *results.lse.at(job.sequence, job.head, first + at) = rows.largest[half] + log(rows.total[half]);
  }
}

template <class T, int Width>
__global__ void __launch_bounds__(kMmaThreads, Width == 64 ? 3 : 2)
    attend_mma_kernel(Attention<T> a, TileJobs jobs, MmaResults<T> results, bool is_aligned) {
  SHARD_SHARED(stage, KeyStage<Width>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x)
    attend_tile<T, Width>(a, TileJob(jobs, number, a.causal), results, is_aligned, stage);
}

template <class T>
void attend_of(const OpContext& ctx, const AttentionCall& call, const AttentionResults& to) {
  const TileJobs jobs{divided_up(call.sequences.longest, kMmaRows), 1, call.q.dims()[2], call.sequences.count};
  if (jobs.count() == 0) return;
  const MmaResults<T> results{HeadRows<T>(to.out), PerQuery<float>(to.lse)};
  const bool is_narrow = std::max(call.q.dims()[3], call.v.dims()[3]) <= 64;
  launch(ctx, is_narrow ? attend_mma_kernel<T, 64> : attend_mma_kernel<T, 128>, grid_of(jobs), kMmaThreads,
         Attention<T>(call), jobs, results, rows_are_aligned(call.k) && rows_are_aligned(call.v));
}

}  // namespace

bool attend_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results) {
  const DType dtype = call.q.dtype();
  const bool is_wide = std::max(call.q.dims()[3], call.v.dims()[3]) > kMmaWidth;
  if (is_wide || size_of(dtype) != 2 || results.softmax.dims().rank() == 4) return false;
  if (dtype == DType::bfloat16) attend_of<__nv_bfloat16>(ctx, call, results);
  else attend_of<__half>(ctx, call, results);
  return true;
}

}  // namespace shard::cuda
