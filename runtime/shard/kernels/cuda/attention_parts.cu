// Attention on CUDA whose keys other ranks hold too, one sequence in each batch: each rank attends to its own, and all combine what
// they have.
#include "shard/kernels/cuda/attention.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {
namespace {

/// The results of all ranks: out [ranks, batch, queries, heads, width] and lse [ranks, batch, heads, queries].
template <class T>
struct AttentionParts {
  using C = math_t<T>;
  const T* out;
  const C* lse;
  int64_t count, mine;  // how many ranks, and which of them this is
  int64_t batches, queries, heads, width, keys;

  __host__ __device__ int64_t rows() const { return batches * heads * queries; }
};

/// Where the combined results go; softmax, of this rank's keys, may be null.
template <class T>
struct CombinedRow {
  T *out, *softmax;
  math_t<T>* lse;
};

/// What a part weighs; one that weighs nothing adds nothing, even if it is not finite.
template <class C>
__device__ C weight_of(C lse, C of_all) {
  return of_all == static_cast<C>(-INFINITY) ? C(0) : exp(lse - of_all);
}

/// A warp for each query of each head.
template <class T>
__global__ void combine_parts_kernel(AttentionParts<T> parts, CombinedRow<T> to) {
  using C = math_t<T>;
  const int64_t rows = parts.rows(), step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows; row += step) {
    C largest = static_cast<C>(-INFINITY), total = 0;
    for (int64_t part = 0; part < parts.count; ++part) {
      const C lse = parts.lse[part * rows + row];
      largest = lse > largest || lse != lse ? lse : largest;  // NaN stays
    }
    for (int64_t part = 0; part < parts.count; ++part) total += weight_of(parts.lse[part * rows + row], largest);
    const int64_t query = row % parts.queries, head = row / parts.queries % parts.heads,
                  batch = row / parts.queries / parts.heads;
    const int64_t line = ((batch * parts.queries + query) * parts.heads + head) * parts.width;
    for (int64_t d = threadIdx.x; d < parts.width; d += kWarp) {
      C sum = 0;
      for (int64_t part = 0; part < parts.count; ++part) {
        const C weight = weight_of(parts.lse[part * rows + row], largest);
        if (weight != C(0)) sum += weight * load(parts.out[part * rows * parts.width + line + d]);
      }
      to.out[line + d] = store<T>(total == C(0) ? C(0) : sum / total);
    }
    const C of_all = total == C(0) ? largest : largest + log(total);
    if (threadIdx.x == 0) to.lse[row] = of_all;
    if (to.softmax == nullptr) continue;
    const C factor = weight_of(parts.lse[parts.mine * rows + row], of_all);
    for (int64_t k = threadIdx.x; k < parts.keys; k += kWarp) {
      T& weight = to.softmax[row * parts.keys + k];
      weight = store<T>(factor == C(0) ? C(0) : load(weight) * factor);
    }
  }
}

template <class T>
void combine_parts(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results) {
  using C = math_t<T>;
  const Gathered outs = ctx.reducer()->all_gather(results.out), sums = ctx.reducer()->all_gather(results.lse);
  const Dims& out = results.out.dims();
  const AttentionParts<T> parts{elements<const T>(outs.all),
                                elements<const C>(sums.all),
                                sums.all.dims()[0],
                                sums.mine,
                                out[0],
                                out[1],
                                out[2],
                                out[3],
                                call.k.dims()[1]};
  if (parts.rows() == 0) return;
  const bool has_softmax = results.softmax.dims().rank() == 4 && results.softmax.numel() != 0;
  constexpr int kLines = 4;  // of a block
  launch(ctx, combine_parts_kernel<T>, grid_for(parts.rows() * kWarp, kWarp * kLines), dim3(kWarp, kLines), parts,
         CombinedRow<T>{elements<T>(results.out), has_softmax ? elements<T>(results.softmax) : nullptr,
                        elements<C>(results.lse)});
}

}  // namespace

void attend_to_all(const OpContext& ctx, const AttentionCall& call, const AttentionResults& results) {
  attend(ctx, call, results);
  if (ctx.reducer() == nullptr) return;
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    if (call.q.dtype() == dtype_of<T>) combine_parts<device_t<T>>(ctx, call, results);
  });
}

}  // namespace shard::cuda
