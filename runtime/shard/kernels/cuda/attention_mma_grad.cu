// The gradients of attention of 16-bit floats on CUDA by the tensor cores. A block owns what it adds up, so that sums have one order.
#include "shard/kernels/cuda/attention_mma.cuh"
#include "shard/kernels/cuda/attention_tile.cuh"
#include "shard/kernels/cuda/attention_weigh.cuh"

namespace shard::cuda {
namespace {

constexpr int kTerms = 32;  // keys or queries that are in shared memory at once

/// The rows of a tile of k, or of q, and those of v, or of the gradients of the results, which they are multiplied by.
template <int Width>
struct GradStage {
  TermStage<Width, kTerms> first, second;
};

/// A warp's rows of q, or of k, those of the gradients of the results, or of v, and the sums of their gradients.
template <int Width>
struct GradRows {
  RowFactors<Width> first, second;
  LaneTile<Width> sums = {};

  __device__ GradRows() {}
};

/// Where a tile is: the rows of the warp, and the terms.
struct TilePlace {
  int64_t row, term;
};

/// Makes products scores and their gradients the weights and the gradients of the scores. Rows are queries and terms keys, or the
/// other way round where the gradients are those of keys or values.
template <Of of, class T>
__device__ void weigh_products(const AttentionGrad<T>& g, const Head<T>& head, const TilePlace& at,
                               LaneTile<kTerms>& weights, LaneTile<kTerms>& slopes) {
  const LanePlace lane;
  PhiloxWords words(g.a.drops ? g.a.key.get() : RandomKey{});
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = at.row + lane.g + half * 8;
#pragma unroll
    for (int n = 0; n < kTerms / 8; ++n) {
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

/// Adds what the terms of the stage give the gradients of the rows.
template <Of of, class T, int Width>
__device__ void add_tile(const AttentionGrad<T>& g, const Head<T>& head, const TilePlace& at, bool finds,
                         const GradStage<Width>& stage, GradRows<Width>& rows) {
  LaneTile<kTerms> weights = {}, slopes = {};
  multiply_terms<T>(rows.first, stage.first, g.a.q.width, weights);
  if constexpr (of != Of::value) multiply_terms<T>(rows.second, stage.second, g.a.v.width, slopes);
  weigh_products<of>(g, head, at, weights, slopes);
  const LaneTile<kTerms>& factors = of == Of::value ? weights : slopes;
  const TermStage<Width, kTerms>& terms = of == Of::value ? stage.second : stage.first;
  if (finds) add_terms_that_weigh<T>(rows.sums, factors, terms);
  else add_terms<T>(rows.sums, factors, terms, of == Of::value ? g.a.v.width : g.a.q.width);
}

/// Fills the stage. Returns, in all threads, whether a row that will be added up has an element that is not finite.
template <Of of, class T, int Width>
__device__ bool load_stage(GradStage<Width>& stage, const TileRows<const T>& first, const TileRows<const T>& second,
                           bool is_aligned) {
  __syncthreads();  // what was in the stage has been read
  const bool finds_first = load_terms(stage.first, first, is_aligned),
             finds_second = load_terms(stage.second, second, is_aligned);
  return __syncthreads_or(of == Of::value ? finds_second : finds_first);
}

template <class T, int Width>
__device__ void query_grads(const AttentionGrad<T>& g, const TileJob& job, const HeadRows<T>& to, bool is_aligned,
                            GradStage<Width>& stage) {
  const Attention<T>& a = g.a;
  const Head<T> head(a, job.sequence, job.head);
  const int64_t first = job.tile * kMmaRows;
  if (first >= head.s.queries) return;
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16;  // the first of the warp
  const TileRows<T> out = head.of_queries(to, first, kMmaRows);
  GradRows<Width> rows;
  load_factors<Width>(rows.first, head.of_queries(a.q, first, kMmaRows), row);
  load_factors<Width>(rows.second, head.of_queries(g.out_grad, first, kMmaRows), row);
  const int64_t end = head.visible(first + out.count - 1);
  for (int64_t start = 0; start < end; start += kTerms) {
    const bool finds =
        load_stage<Of::query>(stage, head.of_keys(a.k, start, kTerms), head.of_keys(a.v, start, kTerms), is_aligned);
    add_tile<Of::query>(g, head, {first + row, start}, finds, stage, rows);
  }
  store_tile<Width>(rows.sums, out, row, [&](float sum, int) { return sum * a.scale; });
}

/// Those of keys or values: sums over the heads of q that read their head, and over the queries of these.
template <Of of, class T, int Width>
__device__ void key_grads(const AttentionGrad<T>& g, const TileJob& job, const HeadRows<T>& to, bool is_aligned,
                          GradStage<Width>& stage) {
  const Attention<T>& a = g.a;
  const Sequence s = a.sequences[job.sequence];
  const int64_t start = job.tile * kMmaRows;
  if (start >= s.keys) return;
  const int row = static_cast<int>(threadIdx.x) / kWarp * 16;  // the first of the warp
  GradRows<Width> rows;
  load_factors<Width>(rows.first, key_rows(a.k, s, start, job.head, kMmaRows), row);
  if constexpr (of == Of::key) load_factors<Width>(rows.second, key_rows(a.v, s, start, job.head, kMmaRows), row);
  const HeadGroup heads(a, job.head);
  for (int64_t h = heads.first; h < heads.last; ++h) {
    const Head<T> head(a, job.sequence, h);
    for (int64_t first = head.first_query(start) / kTerms * kTerms; first < s.queries; first += kTerms) {
      const bool finds = load_stage<of>(stage, head.of_queries(a.q, first, kTerms),
                                        head.of_queries(g.out_grad, first, kTerms), is_aligned);
      add_tile<of>(g, head, {start + row, first}, finds, stage, rows);
    }
  }
  store_tile<Width>(rows.sums, key_rows(to, s, start, job.head, kMmaRows), row,
                    [&](float sum, int) { return of == Of::value ? sum : sum * a.scale; });
}

template <Of of, class T, int Width>
__global__ void __launch_bounds__(kMmaThreads, 2)
    mma_grads_kernel(AttentionGrad<T> g, TileJobs jobs, HeadRows<T> to, bool is_aligned) {
  SHARD_SHARED(stage, GradStage<Width>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x) {
    const TileJob job(jobs, number, of == Of::query && g.a.causal);
    if constexpr (of == Of::query) query_grads<T, Width>(g, job, to, is_aligned, stage);
    else key_grads<of, T, Width>(g, job, to, is_aligned, stage);
  }
}

template <Of of, class T>
void launch_mma_grads(const OpContext& ctx, const AttentionGrad<T>& g, int64_t rows, const DenseTensor& grad,
                      bool is_aligned) {
  const TileJobs jobs{divided_up(rows, kMmaRows), 1, grad.dims()[2], g.a.sequences.count};
  if (jobs.count() == 0) return;
  const bool is_narrow = std::max(g.a.q.width, g.a.v.width) <= 64;
  launch(ctx, is_narrow ? mma_grads_kernel<of, T, 64> : mma_grads_kernel<of, T, 128>, grid_of(jobs), kMmaThreads, g,
         jobs, HeadRows<T>(grad), is_aligned);
}

}  // namespace

template <class T>
bool grads_by_tensor_cores(const OpContext& ctx, const AttentionCall& call, const AttentionGrad<T>& g, Of of,
                           int64_t rows, const DenseTensor& grad) {
  if (std::max(g.a.q.width, g.a.v.width) > kMmaWidth) return false;
  // Gradients of scores may be outside of the range of float16.
  if (std::is_same_v<T, __half> && of != Of::value) return false;
  const bool is_aligned = rows_are_aligned(call.q) && rows_are_aligned(call.k) && rows_are_aligned(call.v) &&
                          reinterpret_cast<uintptr_t>(g.out_grad.data) % 16 == 0;
  if (of == Of::query) launch_mma_grads<Of::query>(ctx, g, rows, grad, is_aligned);
  else if (of == Of::key) launch_mma_grads<Of::key>(ctx, g, rows, grad, is_aligned);
  else launch_mma_grads<Of::value>(ctx, g, rows, grad, is_aligned);
  return true;
}

template bool grads_by_tensor_cores(const OpContext&, const AttentionCall&, const AttentionGrad<__nv_bfloat16>&, Of,
                                    int64_t, const DenseTensor&);
template bool grads_by_tensor_cores(const OpContext&, const AttentionCall&, const AttentionGrad<__half>&, Of, int64_t,
                                    const DenseTensor&);

}  // namespace shard::cuda
