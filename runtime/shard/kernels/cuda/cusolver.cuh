// The functions of cuSOLVER and cuBLAS that decompose matrices, for batches that follow each other in memory. Matrices are in
// column-major order, as LAPACK's are. Work is issued to the stream of this thread on the current device.
#pragma once

#include <cstdint>

namespace shard::cuda {

/// T is float or double. `infos` [count] get 0, or what LAPACK's functions of the same names return.
template <class T>
struct Solver {
  /// Replaces a triangle of a [n, n] by the factor of Cholesky's decomposition.
  static void potrf(bool upper, int64_t n, T* a, int64_t count, int* infos);
  /// Replaces a [m, n] by its factors; pivots [count, min(m, n)] are the rows, from 1, that rows were exchanged with.
  static void getrf(int64_t m, int64_t n, T* a, int64_t* pivots, int64_t count, int* infos);
  /// Replaces the columns of b [n, columns] by solutions for one matrix that getrf has decomposed, or for its transpose.
  static void getrs(bool transpose, int64_t n, int64_t columns, const T* a, const int64_t* pivots, T* b, int* info);
  /// Replaces a [m, n] by r and by what makes q; each is `step` after the one before.
  static void geqrf(int64_t m, int64_t n, T* a, int64_t step, T* factors, int64_t count, int* infos);
  /// Replaces that by the first `columns` columns of q, which k reflections make.
  static void orgqr(int64_t m, int64_t columns, int64_t k, T* a, int64_t step, const T* factors, int64_t count,
                    int* infos);
  /// Replaces a [n, n], of which a triangle is read, by its eigenvectors; w are the eigenvalues.
  static void syevd(bool upper, int64_t n, T* a, T* w, int64_t count, int* infos);
  /// The singular values s and vectors of a [m, n], m >= n, which is overwritten: u [m, n] or, where they are `full`, [m, m], and
  /// vt [n, n].
  static void gesvd(bool full, int64_t m, int64_t n, T* a, T* s, T* u, T* vt, int64_t count, int* infos);
  /// Replaces b [m, n] by b times the inverse of a triangular matrix [n, n], or of its transpose.
  static void trsm(bool upper, bool transpose, bool unit, int64_t m, int64_t n, const T* a, T* b);
};

}  // namespace shard::cuda
