// CPU kernel of least squares, by the drivers of LAPACK. Its matrices are in column-major order: ours are transposed on
// the way to it and back.
#include <algorithm>
#include <cmath>
#include <limits>
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

/// The equations of one matrix a [m, n], column by column, for the columns of b [max(m, n), sides]: their first m rows
/// are replaced by a solution of n rows.
template <class T>
struct Equations {
  int m, n, sides;
  std::vector<T> a, b;
  std::vector<T> singular_values;
  int rank = 0;

  Equations(int m, int n, int sides)
      : m(m), n(n), sides(sides), a(size_t(m) * size_t(n)), b(size_t(std::max(m, n)) * size_t(sides)),
        singular_values(size_t(std::min(m, n))) {}
};

/// Calls run(work, size), which first only asks for the size, as LAPACK does with one of -1.
template <class T, class Run>
void with_work(const Run& run) {
  T wanted = 0;
  run(&wanted, -1);
  // As a float a large size is rounded, which may be down.
  std::vector<T> work(static_cast<size_t>(std::nextafter(wanted, std::numeric_limits<T>::max())) + 1);
  run(work.data(), static_cast<int>(work.size()));
}

/// Returns whether the driver succeeds.
template <class T>
bool solve(Equations<T>& e, const std::string& driver, T rcond) {
  using L = Lapack<T>;
  const int rows = std::max(e.m, e.n);
  // For a matrix of zeros gels has the solution of zeros; for others without full rank it fails.
  const bool is_zero = std::all_of(e.a.begin(), e.a.end(), [](T value) { return value == T(0); });
  if (driver == "gels") e.rank = is_zero ? 0 : std::min(e.m, e.n);
  int info = 0;
  std::vector<int> ints;
  with_work<T>([&](T* work, int size) {
    if (driver == "gels") {
      L::gels("N", &e.m, &e.n, &e.sides, e.a.data(), &e.m, e.b.data(), &rows, work, &size, &info);
    } else if (driver == "gelsy") {
      ints.assign(size_t(e.n), 0);  // every column may be exchanged
      L::gelsy(&e.m, &e.n, &e.sides, e.a.data(), &e.m, e.b.data(), &rows, ints.data(), &rcond, &e.rank, work, &size,
               &info);
    } else if (driver == "gelsd") {
      ints.resize(std::max<size_t>(ints.size(), 1));
      L::gelsd(&e.m, &e.n, &e.sides, e.a.data(), &e.m, e.b.data(), &rows, e.singular_values.data(), &rcond, &e.rank,
               work, &size, ints.data(), &info);
      if (size == -1) ints.resize(size_t(std::max(ints[0], 1)));
    } else {
      L::gelss(&e.m, &e.n, &e.sides, e.a.data(), &e.m, e.b.data(), &rows, e.singular_values.data(), &rcond, &e.rank,
               work, &size, &info);
    }
  });
  return info == 0;
}

/// The sums of the squares of y - x * solution, one for each of `sides` columns.
template <class T>
void sum_residuals(const T* x, const T* y, const T* solution, int64_t m, int64_t n, int64_t sides, T* to) {
  std::vector<double> sums(static_cast<size_t>(sides)), row(sums);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < sides; ++j) row[static_cast<size_t>(j)] = static_cast<double>(y[i * sides + j]);
    for (int64_t p = 0; p < n; ++p) {
      const double factor = static_cast<double>(x[i * n + p]);
      for (int64_t j = 0; j < sides; ++j)
        row[static_cast<size_t>(j)] -= factor * static_cast<double>(solution[p * sides + j]);
    }
    for (size_t j = 0; j < row.size(); ++j) sums[j] += row[j] * row[j];
  }
  for (size_t j = 0; j < sums.size(); ++j) to[j] = static_cast<T>(sums[j]);
}

template <class T>
void lstsq(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const Scalar& rcond,
           const std::string& driver, DenseTensor& solution, DenseTensor& residuals, DenseTensor& rank,
           DenseTensor& singular_values) {
  const Matrices matrices(x), right(y), solved(solution);
  const int m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  const int sides = count_of(ctx, right.columns);
  const bool decomposes = driver == "gelsd" || driver == "gelss";
  const bool wants_residuals = residuals.dims()[residuals.dims().rank() - 1] > 0;
  const int64_t failure = first_failure(matrices.count, 4 * matrices.cost(), [&](int64_t i) {
    const T *from = x.data<T>() + i * matrices.size(), *sides_from = y.data<T>() + i * right.size();
    T* const to = solution.data<T>() + i * solved.size();
    // Without equations or unknowns nothing determines a solution. A column of zeros for no sides has LAPACK find the rank.
    Equations<T> e(m, n, std::max(sides, 1));
    if (k > 0) {
      const auto finite = [](T value) { return std::isfinite(value); };
      if (decomposes && !std::all_of(from, from + matrices.size(), finite)) return false;
      transpose_matrix(from, n, e.a.data(), m, m, n);
      transpose_matrix(sides_from, sides, e.b.data(), std::max(m, n), m, sides);
      if (!solve(e, driver, rcond.to<T>())) return false;
      transpose_matrix(e.b.data(), std::max(m, n), to, sides, sides, n);
    } else {
      std::fill_n(to, solved.size(), T(0));
    }
    rank.data<int32_t>()[i] = e.rank;
    if (decomposes) std::copy_n(e.singular_values.data(), k, singular_values.data<T>() + i * k);
    if (wants_residuals) sum_residuals(from, sides_from, to, m, n, sides, residuals.data<T>() + i * sides);
    return true;
  });
  check_matrices(ctx, x, failure,
                 decomposes
                     ? "the singular values of a matrix of x do not converge, or it has elements that are not finite"
                     : "a matrix of x does not have full rank; use the driver 'gelsd'");
}

}  // namespace

void register_lstsq() {
  for_types(Types<float, double>{},
            []<class T>(TypeTag<T>) { register_kernel("lstsq", kBackend, dtype_of<T>, &lstsq<T>); });
}

}  // namespace shard::cpu
