// transpose on CUDA. A swap of the last two dims uses tiles in shared memory, every other permutation is a copy between strides.
#include <algorithm>

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/strided_copy.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kSwapThreads = 32;  // along either side of a tile, each with the elements of a pack
constexpr int kSwapRows = 8;      // that a block reads and writes at once

/// Elements that are read and written at once.
template <class T, int Count>
struct alignas(sizeof(T) * Count) Pack {
  T values[Count];
};

/// Transposes `batch` matrices of rows x cols, both multiples of Count. Reads and writes run along rows of memory, a pack for each thread.
template <int Count, class T>
__global__ void swap_tiled(T* out, const T* x, int64_t batch, int64_t rows, int64_t cols) {
  using Run = Pack<T, Count>;
  constexpr int kSide = kSwapThreads * Count;
  // The extra column keeps the threads of a warp on different banks.
  SHARD_SHARED(tile, T[kSide][kSide + 1]);
  const int64_t tiles_across = (cols + kSide - 1) / kSide, tiles_down = (rows + kSide - 1) / kSide;
  const int64_t tiles = batch * tiles_down * tiles_across;
  const int first = static_cast<int>(threadIdx.x) * Count;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t matrix = t / (tiles_down * tiles_across);
    const int64_t row = t / tiles_across % tiles_down * kSide;
    const int64_t col = t % tiles_across * kSide;
    const int64_t base = matrix * rows * cols;
    for (int r = threadIdx.y; r < kSide; r += kSwapRows) {
      const int64_t from_col = col + first;
      if (row + r >= rows || from_col >= cols) continue;
      const Run run = *reinterpret_cast<const Run*>(x + base + (row + r) * cols + from_col);
      for (int k = 0; k < Count; ++k) tile[r][first + k] = run.values[k];
    }
    __syncthreads();
    for (int r = threadIdx.y; r < kSide; r += kSwapRows) {
      const int64_t to_col = row + first;
      if (col + r >= cols || to_col >= rows) continue;
      Run run;
      for (int k = 0; k < Count; ++k) run.values[k] = tile[first + k][r];
      *reinterpret_cast<Run*>(out + base + (col + r) * rows + to_col) = run;
    }
    __syncthreads();
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

template <int Count, class T>
void swap_in_packs(const OpContext& ctx, int64_t rows, int64_t cols, const DenseTensor& x, const DenseTensor& out) {
  constexpr int kSide = kSwapThreads * Count, kBlock = kSwapThreads * kSwapRows;
  const int64_t batch = x.numel() / (rows * cols);
  const int64_t tiles = batch * divided_up(rows, kSide) * divided_up(cols, kSide);
  launch(ctx, swap_tiled<Count, T>, grid_for(tiles * kBlock, kBlock), dim3(kSwapThreads, kSwapRows), elements<T>(out),
         elements<const T>(x), batch, rows, cols);
}

/// Pairs of small elements, with which a warp moves 128 bytes of 16-bit ones, where they fill the larger tiles.
template <class T>
void swap_last_two(const OpContext& ctx, int64_t rows, int64_t cols, const DenseTensor& x, const DenseTensor& out) {
  if constexpr (sizeof(T) < 4) {
    const bool are_aligned = (address(x.raw()) | address(out.raw())) % (2 * sizeof(T)) == 0;
    if ((rows | cols) % 2 == 0 && std::min(rows, cols) >= 2 * kSwapThreads && are_aligned)
      return swap_in_packs<2, T>(ctx, rows, cols, x, out);
  }
  swap_in_packs<1, T>(ctx, rows, cols, x, out);
}

void transpose(const OpContext& ctx, const DenseTensor& x, const IntArray& perm, DenseTensor& out) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  const Strided<1> shape = permuted(ctx, x, perm);
  if (swaps_last_two(shape)) {
    const int64_t cols = shape.sizes[shape.rank - 2], rows = shape.sizes[shape.rank - 1];
    switch (size_of(x.dtype())) {
      case 1: return swap_last_two<uint8_t>(ctx, rows, cols, x, out);
      case 2: return swap_last_two<uint16_t>(ctx, rows, cols, x, out);
      case 4: return swap_last_two<uint32_t>(ctx, rows, cols, x, out);
      default: return swap_last_two<uint64_t>(ctx, rows, cols, x, out);
    }
  }
  StridedCopy copy(size_of(x.dtype()));
  int64_t step = count;
  for (int d = 0; d < shape.rank; ++d) {
    step /= shape.sizes[d];
    copy.add(shape.sizes[d], step, shape.strides[0][d]);
  }
  copy.run(ctx, out.raw(), x.raw());
}

}  // namespace

void register_transpose(int backend) {
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    register_kernel("transpose", backend, static_cast<DType>(dtype), transpose);
  }
}

}  // namespace shard::cuda
