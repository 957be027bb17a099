// Attention of 16-bit floats on CUDA by the tensor cores. What attention.cu says of maxima and sums holds here too.
#include "shard/kernels/cuda/attention_mma.cuh"
#include "shard/kernels/cuda/attention_tile.cuh"

namespace shard::cuda {
namespace {

constexpr int kKeys = 64;  // that are in shared memory at once
constexpr int kTiles = 2;  // of 16 rows of a warp
constexpr int kBlockRows = kTiles * kMmaRows;

template <int Width>
struct KeyStage {
  TermStage<Width, kKeys> keys, values;
};

/// What is known of the two rows of a lane.
template <int Width>
struct WarpRows {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};
  LaneTile<Width> sums[1] = {};

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
        rows.sums[0][n][c] = shrink == 0.0f ? 0.0f : rows.sums[0][n][c] * shrink;
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

/// A tile of kMmaRows queries, whatever q, k and v are.
template <class T, int Width>
__device__ SHARD_NO_INLINE void attend_tile(const Attention<T>& a, const TileJob& job, int64_t first,
                                            const MmaResults<T>& results, bool is_aligned, KeyStage<Width>& stage) {
  const Head<T> head(a, job.sequence, job.head);
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
    LaneTile<kKeys> scores[1] = {};
    multiply_terms<T>(factors, stage.keys, a.q.width, scores);
    finish_products(head, first + row, start, scores[0]);
    accumulate(rows, scores[0]);
    if (a.drops) drop(head, key, first + row, start, scores[0]);
    if (any_found) add_terms_that_weigh<T>(rows.sums[0], scores[0], stage.values);
    else add_terms<T>(rows.sums, scores, stage.values, a.v.width);
  }
  store_tile<Width>(rows.sums[0], head.of_queries(results.out, first, kMmaRows), row,
                    [&](float sum, int half) { return rows.total[half] == 0.0f ? 0.0f : sum / rows.total[half]; });
  const LanePlace lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + lane.g + half * 8;
    if (lane.t == 0 && at < queries.count)
      *results.lse.at(job.sequence, job.head, first + at) = rows.largest[half] + log(rows.total[half]);
  }
}

/// The rows of q of a block, and the keys and values that it is at.
template <int Width>
struct BlockStage {
  TermStage<Width, kBlockRows> queries;
  TermStage<Width, kKeys> keys, values;
};
template <int Width>
union alignas(16) AnyStage {
  BlockStage<Width> of_block;
  KeyStage<Width> of_tile;
};

/// What is known of the rows of a lane: scores are those of powers of 2, and totals those of its own keys.
template <int Width>
struct BlockRows {
  float largest[kTiles][2], total[kTiles][2];
  LaneTile<Width> sums[kTiles] = {};

  __device__ BlockRows() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[tile][half] = -INFINITY;
        total[tile][half] = 0;
      }
    }
  }
};

/// Makes products scores of powers of 2. `sees_all` where no row of the warp has a mask or keys that it does not see.
template <class T>
__device__ __forceinline__ void finish_scores(const Head<T>& head, bool sees_all, float scale, int64_t first,
                                              int64_t start, LaneTile<kKeys> (&scores)[kTiles], bool& overflows) {
  const LanePlace lane;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t query = first + tile * 16 + lane.g + half * 8;
      const int seen = sees_all ? kKeys : static_cast<int>(head.visible_from(query, start, kKeys));
      const T* const mask = sees_all ? nullptr : head.mask_of(query, start);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = n * 8 + lane.t * 2 + c;
          float& score = scores[tile][n][2 * half + c];
          score *= scale;
          if (key >= seen) score = -INFINITY;
          else if (mask != nullptr) {
            const float added = load(mask[key]), power = added * kLog2OfE;
            overflows = overflows || (power == -INFINITY && added != -INFINITY);
            score = Head<T>::masked(score, power);
          }
        }
      }
    }
  }
}

/// As accumulate(). What is not finite becomes NaN in the sums.
template <int Width>
__device__ __forceinline__ void accumulate_finite(BlockRows<Width>& rows, LaneTile<kKeys> (&scores)[kTiles]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = rows.largest[tile][half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        largest = fmaxf(largest, fmaxf(scores[tile][n][2 * half], scores[tile][n][2 * half + 1]));
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = fmaxf(largest, shuffle_xor(largest, 2));
      const float center = largest == -INFINITY ? 0.0f : largest;
      const float shrink = power_of_2(rows.largest[tile][half] - center);
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[tile][n][c] = power_of_2(scores[tile][n][c] - center);
          total += scores[tile][n][c];
        }
      }
      rows.total[tile][half] = rows.total[tile][half] * shrink + total;
      rows.largest[tile][half] = largest;
#pragma unroll
      for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) rows.sums[tile][n][c] *= shrink;
      }
    }
  }
}

/// Stores the results of the rows of a warp, unless one of a row of the block is not finite, or a row has no weights and `overflows`: the lowest
/// number of bfloat16 in the mask, which hides nothing, became -infinity in powers of 2. Returns, in all threads, whether it did.
template <class T, int Width>
__device__ __forceinline__ bool store_finite(const TileJob& job, const Head<T>& head, int64_t first, int row,
                                             bool overflows, const MmaResults<T>& results, BlockRows<Width>& rows) {
  const LanePlace lane;
  const TileRows<T> out = head.of_queries(results.out, first, kBlockRows);
  float sum = 0;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& total = rows.total[tile][half];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      sum += total * 0.0f;
      if (overflows && total == 0.0f && row + tile * 16 + lane.g + half * 8 < out.count) sum = NAN;
    }
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum += rows.sums[tile][n][c] * 0.0f;  // NaN where it is not finite
    }
  }
  if (__syncthreads_or(sum != 0.0f)) return false;  // NaN differs
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + tile * 16 + lane.g + half * 8;
      const float total = rows.total[tile][half];
      inverse[half] = total == 0.0f ? 0.0f : 1.0f / total;
      if (lane.t == 0 && at < out.count)
        *results.lse.at(job.sequence, job.head, first + at) = rows.largest[tile][half] * kLogOf2 + log(total);
    }
    store_tile<Width>(rows.sums[tile], out, row + tile * 16,
                      [&](float value, int half) { return value * inverse[half]; });
  }
  return true;
}

/// A tile of kBlockRows queries, without dropout. The next keys are copied while values are added up, and values while scores are.
/// Returns false, in all threads, where a result is not finite: then nothing was stored, and attend_tile() knows what is hidden from
/// whom.
template <class T, int Width>
__device__ bool attend_block(const Attention<T>& a, const TileJob& job, int64_t first, const MmaResults<T>& results,
                             BlockStage<Width>& stage) {
  const Head<T> head(a, job.sequence, job.head);
  if (first >= head.s.queries) return true;
  const TileRows<const T> queries = head.of_queries(a.q, first, kBlockRows);
  const int row = static_cast<int>(threadIdx.x) / kWarp * kTiles * 16;  // the first of the warp
  const int64_t end = head.visible(first + queries.count - 1);
  const bool is_used = row < queries.count;  // whether the warp has rows
  const int64_t seen_by_all = a.mask.data == nullptr && is_used ? head.visible(first + row) : 0;
  const auto factors_of = [&](int k, unsigned(&factors)[kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      read_matrices<false>(&stage.queries.lines[row + tile * 16][k * 16], stage.queries.kStep, factors[tile]);
  };
  __syncthreads();  // what was in the stage has been read
  copy_terms(stage.queries, queries);
  copy_terms(stage.keys, head.of_keys(a.k, 0, kKeys));
  BlockRows<Width> rows;
  bool overflows = false;
  for (int64_t start = 0; start < end; start += kKeys) {
    wait_for_copies();
    __syncthreads();  // keys are there, and the values before have been read
    copy_terms(stage.values, head.of_keys(a.v, start, kKeys));
    LaneTile<kKeys> scores[kTiles] = {};
    if (is_used) {
      multiply_terms<T, kTiles>(factors_of, stage.keys, a.q.width, scores);
      finish_scores(head, start + kKeys <= seen_by_all, a.scale * kLog2OfE, first + row, start, scores, overflows);
      accumulate_finite(rows, scores);
    }
    wait_for_copies();
    __syncthreads();  // values are there, and the keys have been read
    if (start + kKeys < end) copy_terms(stage.keys, head.of_keys(a.k, start + kKeys, kKeys));
    if (is_used) add_terms<T, kTiles>(rows.sums, scores, stage.values, a.v.width);
  }
  wait_for_copies();
  return store_finite(job, head, first, row, overflows, results, rows);
}

template <class T, int Width>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attend_mma_kernel(Attention<T> a, TileJobs jobs, MmaResults<T> results, bool is_aligned) {
  SHARD_DYNAMIC_SHARED(stage, AnyStage<Width>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x) {
    const TileJob job(jobs, number, a.causal);
    const int64_t first = job.tile * kBlockRows;
    if (is_aligned && !a.drops && attend_block<T, Width>(a, job, first, results, stage.of_block)) continue;
    for (int64_t part = first; part < first + kBlockRows; part += kMmaRows)
      attend_tile<T, Width>(a, job, part, results, is_aligned, stage.of_tile);
  }
}

template <int Width, class T>
void launch_attend(const OpContext& ctx, const TileJobs& jobs, const AttentionCall& call, const MmaResults<T>& to) {
  const bool is_aligned = rows_are_aligned(call.q) && rows_are_aligned(call.k) && rows_are_aligned(call.v);
  launch_with_shared<AnyStage<Width>>(ctx, attend_mma_kernel<T, Width>, grid_of(jobs), kMmaThreads, Attention<T>(call),
                                      jobs, to, is_aligned);
}

template <class T>
void attend_by_mma(const OpContext& ctx, const AttentionCall& call, const AttentionResults& to) {
  const TileJobs jobs{divided_up(call.sequences.longest, kBlockRows), 1, call.q.dims()[2], call.sequences.count};
  if (jobs.count() == 0) return;
  const MmaResults<T> results{HeadRows<T>(to.out), PerQuery<float>(to.lse)};
  const bool is_narrow = std::max(call.q.dims()[3], call.v.dims()[3]) <= 64;
  if (is_narrow) launch_attend<64>(ctx, jobs, call, results);
  else launch_attend<128>(ctx, jobs, call, results);
}

}  // namespace

bool attend_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results) {
  const DType dtype = call.q.dtype();
  const bool is_wide = std::max(call.q.dims()[3], call.v.dims()[3]) > kMmaWidth;
  if (is_wide || size_of(dtype) != 2 || results.softmax.dims().rank() == 4) return false;
  if (dtype == DType::bfloat16) attend_by_mma<__nv_bfloat16>(ctx, call, results);
  else attend_by_mma<__half>(ctx, call, results);
  return true;
}

}  // namespace shard::cuda
