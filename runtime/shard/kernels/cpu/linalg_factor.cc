// CPU kernels that factor matrices into orthogonal and triangular ones, by LAPACK. Its matrices are in column-major
// order: ours are transposed on the way to it and back, because the factors of a transposed matrix are others.
#include <algorithm>
#include <string>
#include <vector>

#include "shard/kernels/cpu/lapack.h"
#include "shard/kernels/cpu/matrices.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_linalg.h"
#include "shard/kernels/cpu/transpose.h"

namespace shard::cpu {
namespace {

constexpr int kBlock = 64;  // columns that LAPACK factors together, at most

/// With the mode "r", q has no columns.
template <class T>
void qr(const OpContext& ctx, const DenseTensor& x, const std::string&, DenseTensor& q, DenseTensor& r) {
  const Matrices matrices(x), left(q), right(r);
  const int m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  const auto q_columns = static_cast<int>(left.columns);
  const int size = kBlock * std::max({n, q_columns, 1});
  parallel_for(matrices.count, 2 * matrices.cost(), [&](int64_t begin, int64_t end) {
    std::vector<T> columns(static_cast<size_t>(matrices.rows * std::max(n, q_columns))),
        factors(static_cast<size_t>(k)), work(static_cast<size_t>(size));
    for (int64_t i = begin; i < end; ++i) {
      int info = 0;
      transpose_matrix(x.data<T>() + i * matrices.size(), n, columns.data(), m, m, n);
      if (k > 0) Lapack<T>::geqrf(&m, &n, columns.data(), &m, factors.data(), work.data(), &size, &info);
      T* to = r.data<T>() + i * right.size();
      for (int64_t row = 0; row < right.rows; ++row) {
        for (int64_t column = 0; column < n; ++column)
          *to++ = row <= column ? columns[static_cast<size_t>(column * m + row)] : T(0);
      }
      if (left.size() == 0) continue;
      Lapack<T>::orgqr(&m, &q_columns, &k, columns.data(), &m, factors.data(), work.data(), &size, &info);
      transpose_matrix(columns.data(), m, q.data<T>() + i * left.size(), q_columns, q_columns, m);
    }
  });
}

}  // namespace

void register_linalg_factor() {
  for_types(Types<float, double>{}, []<class T>(TypeTag<T>) { register_kernel("qr", kBackend, dtype_of<T>, &qr<T>); });
}

}  // namespace shard::cpu
