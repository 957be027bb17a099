// The gradients of attention on CUDA. Scores and weights are computed again, tile by tile; a block owns what it adds up, so that
// sums have one order.
#include "shard/kernels/cuda/attention_tile.cuh"
#include "shard/kernels/cuda/attention_weigh.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {
namespace {

/// The mean of each row of out, [batch, sequence, heads]: a warp for each.
template <class T>
__global__ void means_kernel(AttentionGrad<T> g, int64_t rows) {
  using C = math_t<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.y, width = g.out.width;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows; row += step) {
    C sum = 0;
    for (int64_t d = threadIdx.x; d < width; d += kWarp)
      sum += load(g.out_grad.data[row * width + d]) * load(g.out.data[row * width + d]);
    sum = warp_reduce(sum, Plus{});
    if (threadIdx.x == 0) g.means[row] = sum;
  }
}

/// The weights of the queries from `first` and the keys from `start` on, and the gradients of their scores unless only the
/// gradients of values are wanted.
template <Of of, int Groups, class C, class T>
__device__ void weigh_tile(const AttentionGrad<T>& g, const Head<T>& head, int64_t first, int64_t start,
                           Stage<C, Groups>& stage, C (&weights)[kEach<C>][kEach<C>], C (&slopes)[kEach<C>][kEach<C>]) {
  multiply_rows(stage, head.of_queries(g.a.q, first, kTile<C>), head.of_keys(g.a.k, start, kTile<C>), weights);
  finish_scores(head, first, start, weights);
  if constexpr (of != Of::value)
    multiply_rows(stage, head.of_queries(g.out_grad, first, kTile<C>), head.of_keys(g.a.v, start, kTile<C>), slopes);
  const int64_t row = first + tile_row() * kEach<C>;
  const uint64_t column = static_cast<uint64_t>(start + tile_column() * kEach<C>);
  PhiloxWords words(g.a.drops ? g.a.key.get() : RandomKey{});
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
    const RowTerms<C> terms = row_terms<C>(g, head, row + i);
    const uint64_t number = head.weights_of(row + i) + column;
#pragma unroll
    for (int j = 0; j < kEach<C>; ++j) {
      const C kept = g.a.drops ? head.kept(words, number + static_cast<uint64_t>(j)) : C(1);
      weigh(terms, kept, weights[i][j], slopes[i][j]);
    }
  }
}

/// The gradients of a tile of queries, in one slice of the columns of q.
template <int Groups, class C, class T>
__device__ void query_grads(const AttentionGrad<T>& g, const TileJob& job, const HeadRows<T>& to,
                            Stage<C, Groups>& stage, Weights<C>& factors) {
  const Head<T> head(g.a, job.sequence, job.head);
  const int64_t first = job.tile * kTile<C>, column = job.slice * Groups * kTile<C>;
  if (first >= head.s.queries) return;
  const TileRows<T> rows = head.of_queries(to, first, kTile<C>);
  C sums[kEach<C>][Groups * kEach<C>] = {};
  const int64_t end = head.visible(first + rows.count - 1);
  for (int64_t start = 0; start < end; start += kTile<C>) {
    C weights[kEach<C>][kEach<C>] = {}, slopes[kEach<C>][kEach<C>] = {};
    weigh_tile<Of::query>(g, head, first, start, stage, weights, slopes);
    store_by_column<C>(factors, slopes);
    add_weighted(stage, factors, head.of_keys(g.a.k, start, kTile<C>), column, sums);
  }
  store_sums<Groups>(sums, rows, column, [&](C sum, int) { return sum * g.a.scale; });
}

/// The gradients of a tile of keys, or of their values, in one slice of columns: sums over the heads of q that read their head, and
/// over the queries of these, in order.
template <Of of, int Groups, class C, class T>
__device__ void key_grads(const AttentionGrad<T>& g, const TileJob& job, const HeadRows<T>& to, Stage<C, Groups>& stage,
                          Weights<C>& factors) {
  const Attention<T>& a = g.a;
  const int64_t start = job.tile * kTile<C>, column = job.slice * Groups * kTile<C>;
  const HeadGroup heads(a, job.head);
  const Sequence s = a.sequences[job.sequence];
  if (start >= s.keys) return;
  C sums[kEach<C>][Groups * kEach<C>] = {};
  for (int64_t h = heads.first; h < heads.last; ++h) {
    const Head<T> head(a, job.sequence, h);
    for (int64_t first = head.first_query(start) / kTile<C> * kTile<C>; first < s.queries; first += kTile<C>) {
      C weights[kEach<C>][kEach<C>] = {}, slopes[kEach<C>][kEach<C>] = {};
      weigh_tile<of>(g, head, first, start, stage, weights, slopes);
      store_by_row<C>(factors, of == Of::value ? weights : slopes);
      const HeadRows<const T>& terms = of == Of::value ? g.out_grad : a.q;
      add_weighted(stage, factors, head.of_queries(terms, first, kTile<C>), column, sums);
    }
  }
  const TileRows<T> rows = key_rows(to, s, start, job.head, kTile<C>);
  store_sums<Groups>(sums, rows, column, [&](C sum, int) { return of == Of::value ? sum : sum * a.scale; });
}

template <Of of, class T, int Groups>
__global__ void __launch_bounds__(kTileThreads, 2) grads_kernel(AttentionGrad<T> g, TileJobs jobs, HeadRows<T> to) {
  using C = math_t<T>;
  SHARD_SHARED(stage, Stage<C, Groups>);
  SHARD_SHARED(factors, Weights<C>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x) {
    const TileJob job(jobs, number, of == Of::query && g.a.causal);
    if constexpr (of == Of::query) query_grads<Groups, C, T>(g, job, to, stage, factors);
    else key_grads<of, Groups, C, T>(g, job, to, stage, factors);
  }
}

template <Of of, class T>
void launch_grads(const OpContext& ctx, const AttentionGrad<T>& g, int64_t rows, const DenseTensor& grad) {
  using C = math_t<T>;
  if (!grad.defined() || grad.numel() == 0) return;
  with_groups<C>(grad.dims()[3], [&]<int Groups>(std::integral_constant<int, Groups>, int64_t slices) {
    const TileJobs jobs{divided_up(rows, kTile<C>), slices, grad.dims()[2], g.a.sequences.count};
    if (jobs.count() > 0) {
      launch(ctx, grads_kernel<of, T, Groups>, grid_of(jobs), kTileThreads, g, jobs, HeadRows<T>(grad));
    }
  });
}

/// Where the gradient of the bias goes, and its sizes: [sequences, heads, queries, keys], with a 1 where it is broadcast.
template <class T>
struct BiasGrad {
  T* data;
  int64_t sequences, heads, queries, keys;

  __device__ T* at(const TileJob& job, int64_t query) const {
    return data + ((job.sequence * heads + job.head) * queries + query) * keys;
  }
};

/// The gradients of the bias of a tile of queries and keys: those of the scores, summed over the dims of size 1 in their order. A
/// slice of the job is a tile of keys.
template <class C, class T>
__device__ void bias_grads(const AttentionGrad<T>& g, const TileJob& job, const BiasGrad<T>& to, Stage<C, 1>& stage,
                           Weights<C>& of_rows) {
  const Attention<T>& a = g.a;
  const bool one_row = to.queries == 1;
  const int64_t from = one_row ? 0 : job.tile * kTile<C>, end = one_row ? a.sequences.longest : from + 1;
  const int64_t start = job.slice * kTile<C>;
  C sums[kEach<C>][kEach<C>] = {};
  for (int64_t s = job.sequence; s < (to.sequences == 1 ? a.sequences.count : job.sequence + 1); ++s) {
    for (int64_t h = job.head; h < (to.heads == 1 ? a.q.heads : job.head + 1); ++h) {
      const Head<T> head(a, s, h);
      for (int64_t first = from; first < end && first < head.s.queries; first += kTile<C>) {
        const int64_t last = first + kTile<C> < head.s.queries ? first + kTile<C> : head.s.queries;
        if (start >= head.visible(last - 1)) continue;
        C weights[kEach<C>][kEach<C>] = {}, slopes[kEach<C>][kEach<C>] = {};
        weigh_tile<Of::query>(g, head, first, start, stage, weights, slopes);
#pragma unroll
        for (int i = 0; i < kEach<C>; ++i) {
#pragma unroll
          for (int j = 0; j < kEach<C>; ++j) sums[i][j] += slopes[i][j];
        }
      }
    }
  }
  __syncthreads();  // the sums of the last job have been read
  store_by_row<C>(of_rows, sums);
  __syncthreads();
  const int64_t row = from;
  for (int i = static_cast<int>(threadIdx.x); i < kTile<C> * kTile<C>; i += kTileThreads) {
    const int line = i / kTile<C>, column = i % kTile<C>;
    if (start + column >= to.keys || row + line >= to.queries) continue;
    C sum = of_rows.lines[line][column];
    for (int other = 1; one_row && other < kTile<C>; ++other) sum += of_rows.lines[other][column];
    to.at(job, row + line)[start + column] = store<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, 2)
    bias_grads_kernel(AttentionGrad<T> g, TileJobs jobs, BiasGrad<T> to) {
  using C = math_t<T>;
  SHARD_SHARED(stage, Stage<C, 1>);
  SHARD_SHARED(of_rows, Weights<C>);
  for (int64_t number = blockIdx.x; number < jobs.count(); number += gridDim.x)
    bias_grads<C, T>(g, TileJob(jobs, number, false), to, stage, of_rows);
}

template <class T>
void launch_bias_grads(const OpContext& ctx, const AttentionGrad<T>& g, const DenseTensor& grad) {
  if (!grad.defined() || grad.numel() == 0) return;
  const Dims& dims = grad.dims();
  constexpr int64_t kSize = kTile<math_t<T>>;
  const TileJobs jobs{divided_up(dims[2], kSize), divided_up(dims[3], kSize), dims[1], dims[0]};
  launch(ctx, bias_grads_kernel<T>, grid_of(jobs), kTileThreads, g, jobs,
         BiasGrad<T>{elements<T>(grad), dims[0], dims[1], dims[2], dims[3]});
}

template <class T>
void grads_of(const OpContext& ctx, const AttentionCall& call, const DenseTensor& out, const DenseTensor& lse,
              const DenseTensor& out_grad, const AttentionGrads& grads) {
  using C = math_t<T>;
  const int64_t rows = call.q.dims().numel(0, 3);
  const Scratch means(static_cast<size_t>(std::max<int64_t>(rows, 1)) * sizeof(C));
  const AttentionGrad<T> g{Attention<T>(call), HeadRows<const T>(out), HeadRows<const T>(out_grad),
                           PerQuery<const C>(lse), static_cast<C*>(means.data())};
  if (rows > 0) launch(ctx, means_kernel<T>, grid_for(rows * kWarp, 4 * kWarp), dim3(kWarp, 4), g, rows);
  const auto by_tensor_cores = [&](Of of) {
    if constexpr (sizeof(T) == 2) return grads_by_tensor_cores(ctx, call, g, of, grads);
    else return false;
  };
  if (!by_tensor_cores(Of::query)) launch_grads<Of::query>(ctx, g, call.sequences.longest, grads.q);
  if (!by_tensor_cores(Of::key)) {
    launch_grads<Of::key>(ctx, g, call.sequences.longest_keys, grads.k);
    launch_grads<Of::value>(ctx, g, call.sequences.longest_keys, grads.v);
  }
  launch_bias_grads(ctx, g, grads.bias);
}

}  // namespace

void attention_grads(const OpContext& ctx, const AttentionCall& call, const DenseTensor& out, const DenseTensor& lse,
                     const DenseTensor& out_grad, const AttentionGrads& grads) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    if (call.q.dtype() == dtype_of<T>) grads_of<device_t<T>>(ctx, call, out, lse, out_grad, grads);
  });
}

}  // namespace shard::cuda
