// The gradients of attention of 16-bit floats on CUDA by the tensor cores. A block owns what it adds up, so that sums have one order.
#include "shard/kernels/cuda/attention_mma.cuh"
#include "shard/kernels/cuda/attention_tile.cuh"
#include "shard/kernels/cuda/attention_weigh.cuh"

namespace shard::cuda {
namespace {

/// Keys or queries that are in shared memory at once.
template <int Width>
inline constexpr int kTerms = Width <= 64 ? 64 : 32;
template <int Width>
using TermTile = LaneTile<kTerms<Width>>;

/// The rows of a tile of k and v, or of q and the gradients of the results; what belongs to these queries, for powers of 2.
template <int Width>
struct GradStage {
  TermStage<Width, kTerms<Width>> first, second;
  RowTerms<float> of_terms[kTerms<Width>];
};
/// One is filled while the other is read.
template <int Width>
using GradStages = GradStage<Width>[2];

/// A warp's rows of q and the gradients of the results, or of k and v, and the sums of the gradients of q, or of k and v.
template <int Width>
struct GradRows {
  RowFactors<Width> first, second;
  LaneTile<Width> of_first[1] = {}, of_second[1] = {};

  __device__ GradRows() {}
};

/// Where a tile is: the rows of the warp, and the terms.
struct TilePlace {
  int64_t row, term;
};

/// Makes products scores and their gradients the weights and the gradients of the scores. Rows are queries and terms keys, or the
/// other way round where the gradients are those of keys or values.
template <Of of, class T, int Terms>
__device__ void weigh_products(const AttentionGrad<T>& g, const Head<T>& head, const TilePlace& at,
                               LaneTile<Terms>& weights, LaneTile<Terms>& slopes) {
  const LanePlace lane;
  PhiloxWords words(g.a.drops ? g.a.key.get() : RandomKey{});
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = at.row + lane.g + half * 8;
#pragma unroll
    for (int n = 0; n < Terms / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int64_t term = at.term + n * 8 + lane.t * 2 + c;
        const int64_t query = of == Of::query ? row : term, key = of == Of::query ? term : row;
        float &weight = weights[n][2 * half + c], &slope = slopes[n][2 * half + c];
        weight = head.score(weight, query, key);
        const uint64_t number = head.weights_of(query) + static_cast<uint64_t>(key);
        weigh(row_terms<float>(g, head, query), g.a.drops ? head.kept(words, number) : 1.0f, weight, slope);
      }
    }
  }
}

/// What belongs to query i, for powers of 2.
template <class T>
__device__ RowTerms<float> terms_of_power(const AttentionGrad<T>& g, const Head<T>& head, int64_t i) {
  RowTerms<float> terms = row_terms<float>(g, head, i);
  terms.lse *= kLog2OfE;
  return terms;
}

/// The same where each query sees each key, and no weight is dropped.
template <Of of, class T, int Width>
__device__ __forceinline__ void weigh_all(const AttentionGrad<T>& g, const GradStage<Width>& stage,
                                          const RowTerms<float> (&of_rows)[2], LaneTile<kTerms<Width>>& weights,
                                          LaneTile<kTerms<Width>>& slopes) {
  const LanePlace lane;
  const float scale = g.a.scale * kLog2OfE;
#pragma unroll
  for (int n = 0; n < kTerms<Width> / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const RowTerms<float> terms = of == Of::query ? of_rows[half] : stage.of_terms[n * 8 + lane.t * 2 + c];
        float& weight = weights[n][2 * half + c];
        weight = power_of_2(weight * scale - terms.lse);
        slopes[n][2 * half + c] = weight * (slopes[n][2 * half + c] - terms.mean);
      }
    }
  }
}

/// Whether each query of a tile sees each key, and what weigh_all() needs is there.
template <Of of, int Terms, class T>
__device__ bool sees_all(const AttentionGrad<T>& g, const Head<T>& head, const TilePlace& at) {
  if (g.a.drops || g.a.mask.data != nullptr) return false;
  const int64_t first_query = of == Of::query ? at.row : at.term, queries = of == Of::query ? 16 : Terms;
  const int64_t first_key = of == Of::query ? at.term : at.row, keys = of == Of::query ? Terms : 16;
  return first_query + queries <= head.s.queries && first_key + keys <= head.visible(first_query);
}

/// Adds the tiles of one head, with the terms from `begin` to `end`. Unless `Careful`, the next tile is copied meanwhile, and what is
/// not finite makes sums NaN.
template <Of of, bool Careful, class T, int Width>
__device__ void add_head(const AttentionGrad<T>& g, const Head<T>& head, int64_t row, int64_t begin, int64_t end,
                         bool is_aligned, GradStages<Width>& stages, GradRows<Width>& rows) {
  constexpr int kCount = kTerms<Width>;
  const auto first_terms = [&](int64_t at) {
    if constexpr (of == Of::query) return head.of_keys(g.a.k, at, kCount);
    else return head.of_queries(g.a.q, at, kCount);
  };
  const auto second_terms = [&](int64_t at) {
    if constexpr (of == Of::query) return head.of_keys(g.a.v, at, kCount);
    else return head.of_queries(g.out_grad, at, kCount);
  };
  const auto copy = [&](GradStage<Width>& stage, int64_t at) {
    copy_terms(stage.first, first_terms(at));
    copy_terms(stage.second, second_terms(at));
    if (of != Of::query && threadIdx.x < kCount)
      stage.of_terms[threadIdx.x] = terms_of_power(g, head, at + static_cast<int64_t>(threadIdx.x));
  };
  const LanePlace lane;
  RowTerms<float> of_rows[2] = {};
  if constexpr (of == Of::query && !Careful) {
    of_rows[0] = terms_of_power(g, head, row + lane.g);
    of_rows[1] = terms_of_power(g, head, row + lane.g + 8);
  }
  __syncthreads();  // what was in the stages has been read
  if (!Careful && begin < end) copy(stages[0], begin);
  int number = 0;
  for (int64_t at = begin; at < end; at += kCount, number ^= 1) {
    GradStage<Width>& stage = stages[number];
    bool finds_first = false, finds_second = false;
    if constexpr (Careful) {
      __syncthreads();
      finds_first = load_terms(stage.first, first_terms(at), is_aligned);
      finds_second = load_terms(stage.second, second_terms(at), is_aligned);
      finds_first = __syncthreads_or(finds_first);
      finds_second = __syncthreads_or(finds_second);
    } else {
      wait_for_copies();
      __syncthreads();
      if (at + kCount < end) copy(stages[number ^ 1], at + kCount);
    }
    TermTile<Width> weights[1] = {}, slopes[1] = {};
    multiply_terms<T>(rows.first, stage.first, g.a.q.width, weights);
    multiply_terms<T>(rows.second, stage.second, g.a.v.width, slopes);
    if (!Careful && sees_all<of, kCount>(g, head, {row, at}))
      weigh_all<of, T, Width>(g, stage, of_rows, weights[0], slopes[0]);
    else weigh_products<of, T, kCount>(g, head, {row, at}, weights[0], slopes[0]);
    if constexpr (of == Of::key) {
      if (Careful && finds_second) add_terms_that_weigh<T>(rows.of_second[0], weights[0], stage.second);
      else add_terms<T, 1>(rows.of_second, weights, stage.second, g.a.v.width);
    }
    if (Careful && finds_first) add_terms_that_weigh<T>(rows.of_first[0], slopes[0], stage.first);
    else if constexpr (std::is_same_v<T, __half>)
      add_wide_terms<T>(rows.of_first[0], slopes[0], stage.first, g.a.q.width);
    else add_terms<T, 1>(rows.of_first, slopes, stage.first, g.a.q.width);
  }
}

template <class T>
struct GradResults {
  HeadRows<T> first, second;  // of q, or of k and v, without data where one is absent
};

/// Adds up and stores the gradients of a tile of rows. Returns false, in all threads, where one is not finite and Careful is false: then
/// nothing was stored.
template <Of of, bool Careful, class T, int Width>
__device__ SHARD_NO_INLINE bool tile_grads(const AttentionGrad<T>& g, const TileJob& job, const GradResults<T>& to,
                                           bool is_aligned, GradStages<Width>& stages) {
  const Attention<T>& a = g.a;
  const Sequence s = a.sequences[job.sequence];
  const int64_t first = job.tile * kMmaRows;
  if (first >= (of == Of::query ? s.queries : s.keys)) return true;
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16;  // the first of the warp
  GradRows<Width> rows;
  if constexpr (of == Of::query) {
    const Head<T> head(a, job.sequence, job.head);
    load_factors<Width>(rows.first, head.of_queries(a.q, first, kMmaRows), row);
    load_factors<Width>(rows.second, head.of_queries(g.out_grad, first, kMmaRows), row);
    const int64_t last = first + kMmaRows < s.queries ? first + kMmaRows : s.queries;
    add_head<of, Careful>(g, head, first + row, 0, head.visible(last - 1), is_aligned, stages, rows);
  } else {
    load_factors<Width>(rows.first, key_rows(a.k, s, first, job.head, kMmaRows), row);
    load_factors<Width>(rows.second, key_rows(a.v, s, first, job.head, kMmaRows), row);
    const HeadGroup heads(a, job.head);
    for (int64_t h = heads.first; h < heads.last; ++h) {  // those of q that read this head
      const Head<T> head(a, job.sequence, h);
      const int64_t begin = head.first_query(first) / kTerms<Width> * kTerms<Width>;
      add_head<of, Careful>(g, head, first + row, begin, s.queries, is_aligned, stages, rows);
    }
  }
  if constexpr (!Careful) {
    float sum = 0;  // NaN where one is not finite
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum += rows.of_first[0][n][c] * 0.0f + rows.of_second[0][n][c] * 0.0f;
    }
    if (__syncthreads_or(sum != 0.0f)) return false;  // NaN differs
  }
  const auto scaled = [&](float value, int) { return value * a.scale; };
  const auto same = [](float value, int) { return value; };
  if constexpr (of == Of::query) {
    store_tile<Width>(rows.of_first[0], Head<T>(a, job.sequence, job.head).of_queries(to.first, first, kMmaRows), row,
                      scaled);
  } else {
    if (to.first.data != nullptr)
      store_tile<Width>(rows.of_first[0], key_rows(to.first, s, first, job.head, kMmaRows), row, scaled);
    if (to.second.data != nullptr)
      store_tile<Width>(rows.of_second[0], key_rows(to.second, s, first, job.head, kMmaRows), row, same);
  }
  return true;
}

template <Of of, class T, int Width>
__global__ void __launch_bounds__(kMmaThreads, 2)
    mma_grads_kernel(AttentionGrad<T> g, TileJobs jobs, GradResults<T> to, bool is_aligned) {
  SHARD_SHARED(stages, GradStages<Width>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x) {
    const TileJob job(jobs, number, of == Of::query && g.a.causal);
    if (is_aligned && tile_grads<of, false>(g, job, to, is_aligned, stages)) continue;
    tile_grads<of, true>(g, job, to, is_aligned, stages);
  }
}

/// `of` is Of::key for the gradients of keys and values.
template <Of of, class T>
void launch_mma_grads(const OpContext& ctx, const AttentionCall& call, const AttentionGrad<T>& g,
                      const AttentionGrads& grads) {
  const bool is_query = of == Of::query;
  const auto results_of = [](const DenseTensor& grad) {
    return grad.defined() && grad.numel() != 0 ? HeadRows<T>(grad) : HeadRows<T>();
  };
  const GradResults<T> to{results_of(is_query ? grads.q : grads.k), is_query ? HeadRows<T>() : results_of(grads.v)};
  if (to.first.data == nullptr && to.second.data == nullptr) return;
  const int64_t rows = is_query ? g.a.sequences.longest : g.a.sequences.longest_keys;
  const TileJobs jobs{divided_up(rows, kMmaRows), 1, (is_query ? call.q : call.k).dims()[2], g.a.sequences.count};
  if (jobs.count() == 0) return;
  const bool is_aligned = rows_are_aligned(call.q) && rows_are_aligned(call.k) && rows_are_aligned(call.v) &&
                          reinterpret_cast<uintptr_t>(g.out_grad.data) % 16 == 0;
  const bool is_narrow = std::max(g.a.q.width, g.a.v.width) <= 64;
  launch(ctx, is_narrow ? mma_grads_kernel<of, T, 64> : mma_grads_kernel<of, T, 128>, grid_of(jobs), kMmaThreads, g,
         jobs, to, is_aligned);
}

}  // namespace

template <class T>
bool grads_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionGrad<T>& g, Of of,
                           const AttentionGrads& grads) {
  if (std::max(g.a.q.width, g.a.v.width) > kMmaWidth) return false;
  if (of == Of::query) launch_mma_grads<Of::query>(ctx, call, g, grads);
  else launch_mma_grads<Of::key>(ctx, call, g, grads);
  return true;
}

template bool grads_by_tensor_cores(const OpContext&, const AttentionCall&, const AttentionGrad<__nv_bfloat16>&, Of,
                                    const AttentionGrads&);
template bool grads_by_tensor_cores(const OpContext&, const AttentionCall&, const AttentionGrad<__half>&, Of,
                                    const AttentionGrads&);

}  // namespace shard::cuda
