// CPU kernels that decompose matrices and solve equations, by LAPACK. Our matrices are row-major:
// to LAPACK they are transposed.
#include <algorithm>
#include <cmath>
#include <vector>

#include <cblas.h>

#include "shard/kernels/cpu/lapack.h"
#include "shard/kernels/cpu/matrices.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/scratch.h"

namespace shard::cpu {
namespace {

template <class T>
void cholesky(const OpContext& ctx, const DenseTensor& x, bool upper, DenseTensor& out) {
  const Matrices m(x);
  const int n = count_of(ctx, m.rows);
  const int64_t failure = first_failure(m.count, m.cost(), [&](int64_t i) {
    T* to = out.data<T>() + i * m.size();
    std::copy_n(x.data<T>() + i * m.size(), m.size(), to);
    int info = 0;
    if (n > 0) Lapack<T>::potrf(upper ? "L" : "U", &n, to, &n, &info);
    for (int row = 0; row < n; ++row) {
      T* const begin = to + int64_t{row} * n;
      if (upper) std::fill(begin, begin + row, T(0));
      else std::fill(begin + row + 1, begin + n, T(0));
    }
    return info == 0;
  });
  check_matrices(ctx, x, failure, "a matrix of x is not positive definite; add a small multiple of the identity");
}

template <class T>
void triangular_solve(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool upper, bool transpose,
                      bool unitriangular, DenseTensor& out) {
  const Matrices factors(x), m(out);
  const int n = count_of(ctx, m.rows), k = count_of(ctx, m.columns);
  const int64_t zero = unitriangular ? -1 : first_failure(factors.count, n, [&](int64_t i) {
    const T* from = x.data<T>() + i * factors.size();
    for (int row = 0; row < n; ++row) {
      if (from[int64_t{row} * (n + 1)] == T(0)) return false;
    }
    return true;
  });
  check_matrices(ctx, x, zero, "a matrix of x is singular: it has a 0 on its diagonal");
  if (out.numel() == 0) return;
  const Dims batch = leading(out.dims(), 2);
  const std::vector<int64_t> x_numbers = broadcast_numbers(leading(x.dims(), 2), batch),
                             y_numbers = broadcast_numbers(leading(y.dims(), 2), batch);
  parallel_for(m.count, factors.size() * k, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = x.data<T>() + x_numbers[static_cast<size_t>(i)] * factors.size();
      T* to = out.data<T>() + i * m.size();
      std::copy_n(y.data<T>() + y_numbers[static_cast<size_t>(i)] * m.size(), m.size(), to);
      const auto uplo = upper ? CblasUpper : CblasLower;
      const auto trans = transpose ? CblasTrans : CblasNoTrans;
      const auto diag = unitriangular ? CblasUnit : CblasNonUnit;
      Lapack<T>::trsm(CblasRowMajor, CblasLeft, uplo, trans, diag, n, k, 1, from, n, to, k);
    }
  });
}

/// The LU decompositions of the matrices of a tensor, which are transposed to LAPACK.
template <class T>
class Decompositions {
 public:
  Decompositions(const OpContext& ctx, const DenseTensor& x)
      : m_(x), n_(count_of(ctx, m_.rows)), factors_(x.data<T>(), x.data<T>() + x.numel()),
        pivots_(static_cast<size_t>(m_.count * m_.rows)) {
    singular_ = first_failure(m_.count, m_.cost(), [&](int64_t i) {
      int info = 0;
      if (n_ > 0) Lapack<T>::getrf(&n_, &n_, factors(i), &n_, pivots(i), &info);
      return info == 0;
    });
  }

  const Matrices& matrices() const { return m_; }
  /// The number of the first singular matrix, or -1.
  int64_t singular() const { return singular_; }
  /// Overwrites `columns` right sides, each contiguous, by the solutions for matrix i, or for its transpose.
  void solve(int64_t i, T* b, int columns, bool transpose = false) {
    int info = 0;
    if (n_ > 0) Lapack<T>::getrs(transpose ? "N" : "T", &n_, &columns, factors(i), &n_, pivots(i), b, &n_, &info);
  }
  T diagonal(int64_t i, int row) { return factors(i)[int64_t{row} * (n_ + 1)]; }
  /// Whether an odd number of rows was swapped.
  bool odd(int64_t i) {
    bool odd = false;
    for (int row = 0; row < n_; ++row) odd = odd != (pivots(i)[row] != row + 1);
    return odd;
  }

 private:
  T* factors(int64_t i) { return factors_.data() + i * m_.size(); }
  int* pivots(int64_t i) { return pivots_.data() + i * m_.rows; }

  Matrices m_;
  int n_;
  std::vector<T> factors_;
  std::vector<int> pivots_;
  int64_t singular_ = -1;
};

constexpr const char* kSingular = "a matrix of x is singular";

template <class T>
void solve(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  Decompositions<T> decomposed(ctx, x);
  check_matrices(ctx, x, decomposed.singular(), kSingular);
  if (out.numel() == 0) return;
  const int matrix_dims = y.dims().rank() == 1 ? 1 : 2;
  const int64_t n = decomposed.matrices().rows, k = matrix_dims == 1 ? 1 : y.dims()[y.dims().rank() - 1];
  const int columns = count_of(ctx, k);
  const Dims batch = leading(out.dims(), matrix_dims);
  const std::vector<int64_t> x_numbers = broadcast_numbers(leading(x.dims(), 2), batch),
                             y_numbers = broadcast_numbers(leading(y.dims(), matrix_dims), batch);
  parallel_for(batch.numel(), n * n * k, [&](int64_t begin, int64_t end) {
    std::vector<T> sides(static_cast<size_t>(n * k));
    for (int64_t i = begin; i < end; ++i) {
      const T* from = y.data<T>() + y_numbers[static_cast<size_t>(i)] * n * k;
      for (int64_t row = 0; row < n; ++row)
        for (int64_t j = 0; j < k; ++j) sides[static_cast<size_t>(j * n + row)] = from[row * k + j];
      decomposed.solve(x_numbers[static_cast<size_t>(i)], sides.data(), columns);
      T* to = out.data<T>() + i * n * k;
      for (int64_t row = 0; row < n; ++row)
        for (int64_t j = 0; j < k; ++j) to[row * k + j] = sides[static_cast<size_t>(j * n + row)];
    }
  });
}

template <class T>
void inverse(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  Decompositions<T> decomposed(ctx, x);
  check_matrices(ctx, x, decomposed.singular(), kSingular);
  const Matrices& m = decomposed.matrices();
  if (out.numel() == 0) return;
  // Right sides of several jobs, which getri of LAPACK does not have; that is also slower up to 256 rows.
  constexpr int64_t kSides = 128;
  const int64_t n = m.rows, parts = (n + kSides - 1) / kSides;
  parallel_for(m.count * parts, m.cost() / parts, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t i = job / parts, first = job % parts * kSides, last = std::min(first + kSides, n);
      T* const sides = out.data<T>() + i * m.size() + first * n;  // rows of the identity, and then of the inverse
      std::fill_n(sides, (last - first) * n, T(0));
      for (int64_t row = first; row < last; ++row) sides[(row - first) * n + row] = T(1);
      decomposed.solve(i, sides, static_cast<int>(last - first), true);
    }
  });
}

template <class T>
void determinant(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  Decompositions<T> decomposed(ctx, x);
  for (int64_t i = 0; i < out.numel(); ++i) {
    // The exponent is apart, so that the product does not overflow on the way.
    double product = decomposed.odd(i) ? -1 : 1;
    int64_t exponent = 0;
    for (int row = 0; row < decomposed.matrices().rows; ++row) {
      int moved = 0;
      product = std::frexp(product * decomposed.diagonal(i, row), &moved);
      exponent += moved;
    }
    out.data<T>()[i] =
        static_cast<T>(std::ldexp(product, static_cast<int>(std::clamp<int64_t>(exponent, -5000, 5000))));
  }
}

template <class T>
void slogdet(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  Decompositions<T> decomposed(ctx, x);
  const int64_t count = decomposed.matrices().count;
  for (int64_t i = 0; i < count; ++i) {
    double sign = decomposed.odd(i) ? -1 : 1, logarithm = 0;
    for (int row = 0; row < decomposed.matrices().rows; ++row) {
      const double factor = decomposed.diagonal(i, row);
      sign = std::isnan(factor) ? factor : factor == 0 ? 0 : factor < 0 ? -sign : sign;
      logarithm += std::log(std::abs(factor));
    }
    out.data<T>()[i] = static_cast<T>(sign);
    out.data<T>()[count + i] = static_cast<T>(logarithm);
  }
}

/// Copies numbers. False where one of them is not finite.
template <class T>
bool copy_finite(const T* from, int64_t count, T* to) {
  std::copy_n(from, count, to);
  return std::all_of(to, to + count, [](T value) { return std::isfinite(value); });
}

// Decompositions work in memory of their own, from the beginning of a line of the caches on: OpenBLAS rounds otherwise where numbers lie
// otherwise, and a matrix has another place in a batch than in the shard of a rank.

template <class T>
void eigh(const OpContext& ctx, const DenseTensor& x, const std::string& uplo, DenseTensor& w, DenseTensor& v) {
  const Matrices m(x);
  const int n = count_of(ctx, m.rows);
  const int64_t failure = first_failure(m.count, 8 * m.cost(), [&](int64_t i) {
    if (n == 0) return true;
    const Scratch<T> vectors(m.size()), values(n);
    if (!copy_finite(x.data<T>() + i * m.size(), m.size(), vectors.get())) return false;
    const char* triangle = uplo == "L" ? "U" : "L";
    // As documented: the answer to a query would be a T, which rounds large sizes down.
    const int size = 1 + 6 * n + 2 * n * n, int_size = 3 + 5 * n;
    int info = 0;
    const Scratch<T> work(size);
    std::vector<int> ints(static_cast<size_t>(int_size));
    Lapack<T>::syevd("V", triangle, &n, vectors.get(), &n, values.get(), work.get(), &size, ints.data(), &int_size,
                     &info);
    std::copy_n(values.get(), n, w.data<T>() + i * n);
    T* to = v.data<T>() + i * m.size();
    for (int64_t row = 0; row < n; ++row)
      for (int64_t j = 0; j < n; ++j) to[row * n + j] = vectors.get()[j * n + row];
    return info == 0;
  });
  check_matrices(ctx, x, failure,
                 "the eigenvalues of a matrix of x do not converge, or it has elements that are not finite");
}

template <class T>
void svd(const OpContext& ctx, const DenseTensor& x, bool full_matrices, DenseTensor& u, DenseTensor& s,
         DenseTensor& vh) {
  const Matrices matrices(x), left(u), right(vh);
  const int m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  if (k > 20000) {  // LAPACK counts in int the work that it needs, four times the square of k
    fail(ErrorCode::out_of_range, "[{}] a matrix of x is [{}, {}], but the smaller dim must be at most 20000", ctx.op,
         m, n);
  }
  const int u_columns = static_cast<int>(left.columns);
  const int64_t failure = first_failure(matrices.count, 16 * matrices.cost(), [&](int64_t i) {
    T* u_to = u.data<T>() + i * left.size();
    T* vh_to = vh.data<T>() + i * right.size();
    if (k == 0) {  // only the identity is orthogonal to nothing
      for (int64_t j = 0; j < left.size(); ++j) u_to[j] = T(j % (left.columns + 1) == 0);
      for (int64_t j = 0; j < right.size(); ++j) vh_to[j] = T(j % (right.columns + 1) == 0);
      return true;
    }
    // The transposed matrix is vh' diag(s) u', and LAPACK returns vh and u' column by column.
    const Scratch<T> copy(matrices.size()), values(k), u_out(left.size()), vh_out(right.size());
    if (!copy_finite(x.data<T>() + i * matrices.size(), matrices.size(), copy.get())) return false;
    const char* job = full_matrices ? "A" : "S";
    T work_size = 0;
    std::vector<int> ints(static_cast<size_t>(8 * k));
    int info = 0, ask = -1;
    Lapack<T>::gesdd(job, &n, &m, copy.get(), &n, values.get(), vh_out.get(), &n, u_out.get(), &u_columns, &work_size,
                     &ask, ints.data(), &info);
    int size = static_cast<int>(work_size);
    const Scratch<T> work(size);
    Lapack<T>::gesdd(job, &n, &m, copy.get(), &n, values.get(), vh_out.get(), &n, u_out.get(), &u_columns, work.get(),
                     &size, ints.data(), &info);
    std::copy_n(values.get(), k, s.data<T>() + i * k);
    std::copy_n(u_out.get(), left.size(), u_to);
    std::copy_n(vh_out.get(), right.size(), vh_to);
    return info == 0;
  });
  check_matrices(ctx, x, failure,
                 "the singular values of a matrix of x do not converge, or it has elements that are not finite");
}

}  // namespace

void register_linalg() {
  for_types(Types<float, double>{}, []<class T>(TypeTag<T>) {
    register_kernel("cholesky", kBackend, dtype_of<T>, &cholesky<T>);
    register_kernel("triangular_solve", kBackend, dtype_of<T>, &triangular_solve<T>);
    register_kernel("solve", kBackend, dtype_of<T>, &solve<T>);
    register_kernel("inverse", kBackend, dtype_of<T>, &inverse<T>);
    register_kernel("determinant", kBackend, dtype_of<T>, &determinant<T>);
    register_kernel("slogdet", kBackend, dtype_of<T>, &slogdet<T>);
    register_kernel("eigh", kBackend, dtype_of<T>, &eigh<T>);
    register_kernel("svd", kBackend, dtype_of<T>, &svd<T>);
  });
}

}  // namespace shard::cpu
