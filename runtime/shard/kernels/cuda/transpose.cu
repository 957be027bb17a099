// transpose on CUDA. A swap of the last two dims uses tiles in shared memory, every other
// permutation copies element by element.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kTransposeTile = 32;
constexpr int kTileRows = 8;

/// Transposes `batch` matrices of rows x cols. Both reads and writes run along rows of memory.
template <class T>
__global__ void swap_tiled(T* out, const T* x, int64_t batch, int64_t rows, int64_t cols) {
  SHARD_SHARED(
      tile, T[kTransposeTile][kTransposeTile + 1]);  // the extra column keeps the threads of a warp on different banks
  const int64_t tiles_across = (cols + kTransposeTile - 1) / kTransposeTile;
  const int64_t tiles_down = (rows + kTransposeTile - 1) / kTransposeTile;
  const int64_t tiles = batch * tiles_down * tiles_across;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t matrix = t / (tiles_down * tiles_across);
    const int64_t row = t / tiles_across % tiles_down * kTransposeTile;
    const int64_t col = t % tiles_across * kTransposeTile;
    const int64_t base = matrix * rows * cols;
    for (int r = threadIdx.y; r < kTransposeTile; r += kTileRows) {
      const int64_t from_col = col + threadIdx.x;
      if (row + r < rows && from_col < cols) tile[r][threadIdx.x] = x[base + (row + r) * cols + from_col];
    }
    __syncthreads();
    for (int r = threadIdx.y; r < kTransposeTile; r += kTileRows) {
      const int64_t to_col = row + threadIdx.x;
      if (col + r < cols && to_col < rows) out[base + (col + r) * rows + to_col] = tile[threadIdx.x][r];
    }
    __syncthreads();
  }
}

template <class T, class Index>
__global__ void permute(T* out, const T* x, Index count, Strided<1> shape) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t at[1];
    shape.locate(i, at);
    out[i] = x[at[0]];
  }
}

/// The output's shape with the strides of the input.
Strided<1> permuted(const OpContext& ctx, const DenseTensor& x, const IntArray& perm) {
  const Dims strides = broadcast_strides(x.dims());
  Strided<1> shape;
  for (int64_t entry : perm) {
    const int dim = normalize_axis(ctx.op, "perm", entry, x.dims().rank());
    shape.append(x.dims()[dim], {strides[dim]});
  }
  return shape;
}

/// Whether `shape` traverses [batch of] rows x cols as cols x rows.
bool swaps_last_two(const Strided<1>& shape) {
  const int n = shape.rank;
  if (n != 2 && n != 3) return false;
  const int64_t cols = shape.sizes[n - 2];
  const int64_t rows = shape.sizes[n - 1];
  return shape.strides[0][n - 2] == 1 && shape.strides[0][n - 1] == cols &&
         (n == 2 || shape.strides[0][0] == rows * cols);
}

template <class T>
void run(const OpContext& ctx, const Strided<1>& shape, int64_t count, const DenseTensor& x, const DenseTensor& out) {
  if (swaps_last_two(shape)) {
    const int64_t cols = shape.sizes[shape.rank - 2];
    const int64_t rows = shape.sizes[shape.rank - 1];
    const int64_t batch = count / (rows * cols);
    const int64_t tiles =
        batch * ((rows + kTransposeTile - 1) / kTransposeTile) * ((cols + kTransposeTile - 1) / kTransposeTile);
    const dim3 block(kTransposeTile, kTileRows);
    const unsigned grid = grid_for(tiles * kTransposeTile * kTileRows, kTransposeTile * kTileRows);
    launch(ctx, swap_tiled<T>, grid, block, elements<T>(out), elements<const T>(x), batch, rows, cols);
  } else if (count < (int64_t{1} << 31)) {
    launch(ctx, permute<T, uint32_t>, grid_for(count, kThreads), kThreads, elements<T>(out), elements<const T>(x),
           static_cast<uint32_t>(count), shape);
  } else {
    launch(ctx, permute<T, int64_t>, grid_for(count, kThreads), kThreads, elements<T>(out), elements<const T>(x), count,
           shape);
  }
}

void transpose(const OpContext& ctx, const DenseTensor& x, const IntArray& perm, DenseTensor& out) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  const Strided<1> shape = permuted(ctx, x, perm);
  // the order of elements does not change
  if (shape.rank == 0 || (shape.rank == 1 && shape.strides[0][0] == 1)) {
    return check(cudaMemcpyAsync(out.raw(), x.raw(), x.meta().bytes(), cudaMemcpyDeviceToDevice, stream()),
                 "cudaMemcpyAsync (device to device)");
  }
  switch (size_of(x.dtype())) {  // copying elements needs only their size
    case 1: run<uint8_t>(ctx, shape, count, x, out); break;
    case 2: run<uint16_t>(ctx, shape, count, x, out); break;
    case 4: run<uint32_t>(ctx, shape, count, x, out); break;
    default: run<uint64_t>(ctx, shape, count, x, out); break;
  }
}

}  // namespace

void register_transpose(int backend) {
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    register_kernel("transpose", backend, static_cast<DType>(dtype), transpose);
  }
}

}  // namespace shard::cuda
