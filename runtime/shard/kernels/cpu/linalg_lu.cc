// CPU kernels of LU decompositions, by LAPACK or without exchanges of rows, and of what is packed into their results.
#include <algorithm>
#include <numeric>
#include <vector>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/lapack.h"
#include "shard/kernels/cpu/matrices.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_linalg.h"
#include "shard/kernels/cpu/transpose.h"

namespace shard::cpu {
namespace {

/// Overwrites a [m, n] by its factors, without exchanging rows. Returns, as LAPACK, the number from 1 of the first pivot
/// that is 0, or 0.
template <class T>
int factor_in_order(T* a, int64_t m, int64_t n) {
  int info = 0;
  for (int64_t k = 0; k < std::min(m, n); ++k) {
    const T* const pivot = a + k * n;
    if (pivot[k] == T(0) && info == 0) info = static_cast<int>(k + 1);
    for (int64_t row = k + 1; row < m; ++row) {
      T* const to = a + row * n;
      if (to[k] == T(0)) continue;  // also beside a pivot of 0
      const T factor = to[k] /= pivot[k];
      for (int64_t j = k + 1; j < n; ++j) to[j] -= factor * pivot[j];
    }
  }
  return info;
}

/// out may be x.
template <class T>
void lu(const OpContext& ctx, const DenseTensor& x, bool pivot, DenseTensor& out, DenseTensor& pivots,
        DenseTensor& infos) {
  const Matrices matrices(x);
  const int m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  parallel_for(matrices.count, matrices.cost(), [&](int64_t begin, int64_t end) {
    std::vector<T> columns(pivot ? static_cast<size_t>(matrices.size()) : 0);
    for (int64_t i = begin; i < end; ++i) {
      const T* from = x.data<T>() + i * matrices.size();
      T* const to = out.data<T>() + i * matrices.size();
      int* const exchanges = pivots.data<int32_t>() + i * k;
      int info = 0;
      if (pivot && k > 0) {
        transpose_matrix(from, n, columns.data(), m, m, n);
        Lapack<T>::getrf(&m, &n, columns.data(), &m, exchanges, &info);
        transpose_matrix(columns.data(), m, to, n, n, m);
      } else if (!pivot) {
        if (to != from) std::copy_n(from, matrices.size(), to);
        info = factor_in_order(to, m, n);
        std::iota(exchanges, exchanges + k, 1);
      }
      infos.data<int32_t>()[i] = info;
    }
  });
}

/// The matrix p [m, m] for which p times the rows in their final order are the rows before k exchanges.
template <class T>
void unpack_exchanges(const int32_t* exchanges, int64_t k, int64_t m, T* p) {
  std::vector<int64_t> order(static_cast<size_t>(m));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i < k; ++i)
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(exchanges[i] - 1)]);
  std::fill_n(p, m * m, T(0));
  for (int64_t i = 0; i < m; ++i) p[order[static_cast<size_t>(i)] * m + i] = T(1);
}

template <class T>
void lu_unpack(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool unpack_ludata, bool unpack_pivots,
               DenseTensor& pmat, DenseTensor& l, DenseTensor& u) {
  const Matrices packed(x);
  const int64_t m = packed.rows, n = packed.columns, k = std::min(m, n);
  if (unpack_pivots) check_indices(ctx, 1, "y", y, 1, m + 1);
  parallel_for(packed.count, packed.size() + m * m, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (unpack_pivots) unpack_exchanges(y.data<int32_t>() + i * k, k, m, pmat.data<T>() + i * m * m);
      if (!unpack_ludata) continue;
      const T* const from = x.data<T>() + i * packed.size();
      T* const lower = l.data<T>() + i * m * k;
      T* const upper = u.data<T>() + i * k * n;
      for (int64_t row = 0; row < m; ++row)
        for (int64_t j = 0; j < k; ++j) lower[row * k + j] = j < row ? from[row * n + j] : T(j == row);
      for (int64_t row = 0; row < k; ++row)
        for (int64_t j = 0; j < n; ++j) upper[row * n + j] = j < row ? T(0) : from[row * n + j];
    }
  });
}

}  // namespace

void register_linalg_lu() {
  for_types(Types<float, double>{}, []<class T>(TypeTag<T>) {
    register_kernel("lu", kBackend, dtype_of<T>, &lu<T>);
    register_kernel("lu_unpack", kBackend, dtype_of<T>, &lu_unpack<T>);
  });
}

}  // namespace shard::cpu
