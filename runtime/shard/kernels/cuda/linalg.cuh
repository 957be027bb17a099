// What kernels of CUDA for tensors of matrices have in common: errors that name a matrix, copies, transposed copies.
#pragma once

#include "shard/kernels/cpu/matrix_batch.h"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/each.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {

/// Describes what is wrong with a matrix of x, flat input 0. `problem` lives as long as the program.
struct alignas(8) MatrixProblem {
  const char *op, *problem;
  ArgumentPlace x;

  [[noreturn]] void fail(int64_t position, int64_t) const {
    fail_check(ErrorCode::invalid_argument, "{}", matrix_text(op, problem, x, position));
  }
};

/// Checks the matrices of x. The results of one that is reported are arbitrary.
class MatrixCheck : public DataCheck<MatrixProblem> {
 public:
  MatrixCheck(const OpContext& ctx, const DenseTensor& x, const char* problem)
      : DataCheck(MatrixProblem{ctx.op, problem, ArgumentPlace(ctx, 0, x)}) {}
};

/// Numbers of T in memory of the device that belongs to the work of a scope.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : memory_(static_cast<size_t>(count > 0 ? count : 1) * sizeof(T)) {}
  T* get() const { return static_cast<T*>(memory_.data()); }

 private:
  Scratch memory_;
};

inline constexpr int kMatrixThreads = 256;

/// As for_each, for bodies that check what they see: body(i, check).
template <class Body>
__global__ void checked_each_kernel(int64_t count, Body body, MatrixCheck check) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) body(i, check);
}
template <class Body>
void for_each(const OpContext& ctx, int64_t count, const Body& body, const MatrixCheck& check) {
  if (count > 0)
    launch(ctx, checked_each_kernel<Body>, grid_for(count, kMatrixThreads), kMatrixThreads, count, body, check);
}

/// Reports the matrices for which a function of LAPACK has failed.
struct ReportFailures {
  const int* infos;
  __device__ void operator()(int64_t i, const MatrixCheck& check) const {
    if (infos[i] != 0) check.report(i, infos[i]);
  }
};

/// Copies matrices of `size` elements. One that is not finite is reported, and the element is 0 then, so that algorithms end.
template <class T>
struct CopyFinite {
  T* to;
  const T* from;
  int64_t size;
  __device__ void operator()(int64_t i, const MatrixCheck& check) const {
    const T value = from[i];
    const bool is_finite = value - value == T(0);
    if (!is_finite) check.report(i / size, 0);
    to[i] = is_finite ? value : T(0);
  }
};

/// The identity in each of these matrices, which may have more rows or columns than the other.
template <class T>
struct FillIdentity {
  T* to;
  int64_t columns, size;
  __device__ void operator()(int64_t i) const { to[i] = i % size % (columns + 1) == 0 ? T(1) : T(0); }
};

/// `count` matrices [rows, columns] of which each is `step` after the one before.
template <class T>
struct MatrixList {
  T* data;
  int64_t rows, columns, step;
};

inline constexpr int kSwapTile = 32, kSwapRows = 8;

/// Copies matrices as [columns, rows], `to_step` apart. Both reads and writes run along rows of memory.
template <class T>
__global__ void transpose_kernel(T* to, int64_t to_step, MatrixList<const T> from, int64_t count) {
  SHARD_SHARED(tile, T[kSwapTile][kSwapTile + 1]);
  const int64_t across = (from.columns + kSwapTile - 1) / kSwapTile, down = (from.rows + kSwapTile - 1) / kSwapTile;
  for (int64_t t = blockIdx.x; t < count * down * across; t += gridDim.x) {
    const int64_t matrix = t / (down * across), row = t / across % down * kSwapTile, column = t % across * kSwapTile;
    const int lane = static_cast<int>(threadIdx.x);
    for (int r = static_cast<int>(threadIdx.y); r < kSwapTile; r += kSwapRows) {
      if (row + r < from.rows && column + lane < from.columns)
        tile[r][lane] = from.data[matrix * from.step + (row + r) * from.columns + column + lane];
    }
    __syncthreads();
    for (int r = static_cast<int>(threadIdx.y); r < kSwapTile; r += kSwapRows) {
      if (column + r < from.columns && row + lane < from.rows)
        to[matrix * to_step + (column + r) * from.rows + row + lane] = tile[lane][r];
    }
    __syncthreads();
  }
}

template <class T>
void transpose_matrices(const OpContext& ctx, T* to, int64_t to_step, const MatrixList<const T>& from, int64_t count) {
  const int64_t tiles =
      count * ((from.columns + kSwapTile - 1) / kSwapTile) * ((from.rows + kSwapTile - 1) / kSwapTile);
  if (tiles == 0) return;
  launch(ctx, transpose_kernel<T>, static_cast<unsigned>(std::min<int64_t>(tiles, INT32_MAX)),
         dim3(kSwapTile, kSwapRows), to, to_step, from, count);
}
/// Matrices that follow each other.
template <class T>
void transpose_matrices(const OpContext& ctx, T* to, const T* from, int64_t rows, int64_t columns, int64_t count) {
  transpose_matrices<T>(ctx, to, rows * columns, {from, rows, columns, rows * columns}, count);
}

}  // namespace shard::cuda
