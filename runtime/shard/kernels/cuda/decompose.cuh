// Decompositions of lists of matrices on CUDA that several ops make: triangles of qr, and singular values.
#pragma once

#include "shard/kernels/cuda/cusolver.cuh"
#include "shard/kernels/cuda/linalg.cuh"

namespace shard::cuda {

/// The upper triangle of columns [m, n] that are `step` apart, as rows.
template <class T>
struct TakeTriangle {
  T* to;
  const T* columns;
  int64_t m, n, step, rows;
  __device__ void operator()(int64_t i) const {
    const int64_t column = i % n, row = i / n % rows, matrix = i / n / rows;
    to[i] = row <= column ? columns[matrix * step + column * m + row] : T(0);
  }
};

struct MatrixSizes {
  int64_t count, m, n;
};

/// Where singular values and vectors go; `infos` are LAPACK's.
template <class T>
struct SingularVectors {
  T *u, *s, *vh;
  int* infos;
};

constexpr const char* kNoSingularValues =
    "the singular values of a matrix of x do not converge, or it has elements that are not finite";

/// The vectors and values of finite matrices in `x`, which is overwritten; neither m nor n is 0.
template <class T>
void decompose(const OpContext& ctx, T* x, const MatrixSizes& sizes, bool full, const SingularVectors<T>& to) {
  const auto [count, m, n] = sizes;
  if (n >= m) {  // The transposed matrix is vh' diag(s) u', and cuSOLVER returns vh and u' column by column.
    return Solver<T>::gesvd(full, n, m, x, to.s, to.vh, to.u, count, to.infos);
  }
  const int64_t u_columns = full ? m : n;
  const DeviceArray<T> columns(count * m * n), left(count * m * u_columns), right(count * n * n);
  transpose_matrices<T>(ctx, columns.get(), x, m, n, count);
  Solver<T>::gesvd(full, m, n, columns.get(), to.s, left.get(), right.get(), count, to.infos);
  transpose_matrices<T>(ctx, to.u, left.get(), u_columns, m, count);
  transpose_matrices<T>(ctx, to.vh, right.get(), n, n, count);
}

}  // namespace shard::cuda
