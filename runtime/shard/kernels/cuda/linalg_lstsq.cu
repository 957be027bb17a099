// Least squares on CUDA: with the driver gels by qr, with the others by singular values.
#include <limits>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/decompose.cuh"
#include "shard/kernels/cuda/product.cuh"

namespace shard::cuda {
namespace {

using cpu::count_of;
using cpu::Matrices;

/// Equations x [count, m, n] for y [count, m, sides], and their solution [count, n, sides].
struct Equations {
  DenseTensor x, y, solution;
  int64_t count, m, n, sides;

  int64_t k() const { return std::min(m, n); }
};

DenseTensor matrices_like(const DenseTensor& x, int64_t count, int64_t rows, int64_t columns) {
  return DenseTensor::allocate(x.device(), {Dims{count, rows, columns}, x.dtype()});
}

/// x with one leading dim.
DenseTensor as_list(const DenseTensor& x, int64_t count, int64_t rows, int64_t columns) {
  return x.reinterpret({Dims{count, rows, columns}, x.dtype()});
}

/// The rank of each matrix by the triangle r [k, k] of its decomposition: k, or 0 where r has nothing but zeros. Others with a 0 on
/// the diagonal are reported.
template <class T>
struct RankOfTriangle {
  int32_t* rank;
  const T* r;
  int64_t k;
  __device__ void operator()(int64_t i, const MatrixCheck& check) const {
    const T* const from = r + i * k * k;
    bool is_zero = true, is_full = true;
    for (int64_t at = 0; at < k * k; ++at) {
      is_zero = is_zero && from[at] == T(0);
      is_full = is_full && (at % (k + 1) != 0 || from[at] != T(0));
    }
    if (!is_full && !is_zero) check.report(i, 0);
    rank[i] = is_zero ? 0 : static_cast<int32_t>(k);
  }
};

/// The solutions for matrices of zeros.
template <class T>
struct ClearSolution {
  T* solution;
  const int32_t* rank;
  int64_t size;
  __device__ void operator()(int64_t i) const {
    if (rank[i / size] == 0) solution[i] = T(0);
  }
};

/// By q and r of x or, where it is wide, of its transpose: both are of the larger dim and k.
template <class T>
void solve_by_qr(const OpContext& ctx, const Equations& e, const MatrixCheck& check, int32_t* rank) {
  const bool is_wide = e.m < e.n;
  const int64_t rows = std::max(e.m, e.n), k = e.k(), step = rows * k;
  const DenseTensor q = matrices_like(e.x, e.count, k, rows);  // columns
  T* const columns = elements<T>(q);
  if (is_wide) copy_all(e.x, q);
  else transpose_matrices<T>(ctx, columns, elements<const T>(e.x), e.m, e.n, e.count);
  const DeviceArray<T> factors(e.count * k), r(e.count * k * k);
  const DeviceArray<int> infos(e.count);
  Solver<T>::geqrf(rows, k, columns, step, factors.get(), e.count, infos.get());
  for_each(ctx, e.count * k * k, TakeTriangle<T>{r.get(), columns, rows, k, step, k});
  for_each(ctx, e.count, RankOfTriangle<T>{rank, r.get(), k}, check);
  if (e.solution.numel() == 0) return;
  Solver<T>::orgqr(rows, k, k, columns, step, factors.get(), e.count, infos.get());
  DenseTensor middle = matrices_like(e.x, e.count, k, e.sides), solution = e.solution;
  if (is_wide) copy_all(e.y, middle);
  else matmul(ctx, q, e.y, false, false, middle);
  T* const sides = elements<T>(middle);  // to cuBLAS it and r are transposed
  for (int64_t i = 0; i < e.count; ++i)
    Solver<T>::trsm(false, is_wide, false, e.sides, k, r.get() + i * k * k, sides + i * k * e.sides);
  if (is_wide) matmul(ctx, q, middle, true, false, solution);
  else copy_all(middle, solution);
  for_each(ctx, solution.numel(), ClearSolution<T>{elements<T>(solution), rank, e.n * e.sides});
}

/// The singular values that count: those above rcond times the largest, or above the precision of T for a negative rcond.
template <class T>
struct Relevant {
  const T* values;
  int64_t k;
  T rcond, epsilon, least;
  __device__ bool operator()(int64_t matrix, int64_t j) const {
    const T bound = (rcond < T(0) ? epsilon : rcond) * values[matrix * k];
    return values[matrix * k + j] > (bound > least ? bound : least);
  }
};

template <class T>
struct CountRelevant {
  int32_t* rank;
  Relevant<T> is_relevant;
  __device__ void operator()(int64_t i) const {
    int32_t count = 0;
    for (int64_t j = 0; j < is_relevant.k; ++j) count += is_relevant(i, j) ? 1 : 0;
    rank[i] = count;
  }
};

/// Divides rows [k, sides] by their singular values.
template <class T>
struct DivideRows {
  T* rows;
  int64_t sides;
  Relevant<T> is_relevant;
  __device__ void operator()(int64_t i) const {
    const int64_t j = i / sides % is_relevant.k, matrix = i / sides / is_relevant.k;
    rows[i] = is_relevant(matrix, j) ? rows[i] / is_relevant.values[matrix * is_relevant.k + j] : T(0);
  }
};

/// `values` are the singular values.
template <class T>
void solve_by_values(const OpContext& ctx, const Equations& e, const MatrixCheck& check, T rcond, T* values,
                     int32_t* rank) {
  const int64_t k = e.k();
  const DenseTensor u = matrices_like(e.x, e.count, e.m, k), vh = matrices_like(e.x, e.count, k, e.n);
  const DeviceArray<T> copy(e.x.numel());
  const DeviceArray<int> infos(e.count);
  for_each(ctx, e.x.numel(), CopyFinite<T>{copy.get(), elements<const T>(e.x), e.m * e.n}, check);
  decompose<T>(ctx, copy.get(), {e.count, e.m, e.n}, false, {elements<T>(u), values, elements<T>(vh), infos.get()});
  for_each(ctx, e.count, ReportFailures{infos.get()}, check);
  const Relevant<T> is_relevant{values, k, rcond, std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::min()};
  for_each(ctx, e.count, CountRelevant<T>{rank, is_relevant});
  if (e.solution.numel() == 0) return;
  DenseTensor middle = matrices_like(e.x, e.count, k, e.sides), solution = e.solution;
  matmul(ctx, u, e.y, true, false, middle);
  for_each(ctx, middle.numel(), DivideRows<T>{elements<T>(middle), e.sides, is_relevant});
  matmul(ctx, vh, middle, true, false, solution);
}

/// The sum of the squares of a column of y - x * solution: a block for each.
template <class T>
__global__ void residuals_kernel(const T* x, const T* y, const T* solution, int64_t m, int64_t n, int64_t sides,
                                 int64_t columns, T* to) {
  for (int64_t column = blockIdx.x; column < columns; column += gridDim.x) {
    const int64_t matrix = column / sides, j = column % sides;
    double sum = 0;
    for (int64_t row = threadIdx.x; row < m; row += kMatrixThreads) {
      double left = static_cast<double>(y[(matrix * m + row) * sides + j]);
      for (int64_t p = 0; p < n; ++p)
        left -= static_cast<double>(x[(matrix * m + row) * n + p]) *
                static_cast<double>(solution[(matrix * n + p) * sides + j]);
      sum += left * left;
    }
    sum = block_reduce<kMatrixThreads>(sum, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0) to[column] = static_cast<T>(sum);
  }
}

template <class T>
void lstsq(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const Scalar& rcond,
           const std::string& driver, DenseTensor& solution, DenseTensor& residuals, DenseTensor& rank,
           DenseTensor& singular_values) {
  const Matrices matrices(x), right(y);
  const int64_t m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  const int64_t sides = count_of(ctx, right.columns), count = matrices.count;
  const DeviceScope scope(solution.device().index);
  const bool decomposes = driver == "gelsd" || driver == "gelss";
  if (k == 0 || count == 0) {  // without equations or unknowns nothing determines a solution
    fill_zeros(solution);
    fill_zeros(rank);
  } else {
    const Equations e{
        as_list(x, count, m, n), as_list(y, count, m, sides), as_list(solution, count, n, sides), count, m, n, sides};
    auto* const ranks = elements<int32_t>(rank);
    if (driver == "gels") {
      solve_by_qr<T>(ctx, e, MatrixCheck(ctx, x, "a matrix of x does not have full rank; use the driver 'gelsd'"),
                     ranks);
    } else {
      const DeviceArray<T> values(decomposes ? 0 : count * k);
      solve_by_values<T>(ctx, e, MatrixCheck(ctx, x, kNoSingularValues), rcond.to<T>(),
                         decomposes ? elements<T>(singular_values) : values.get(), ranks);
    }
  }
  if (residuals.numel() == 0) return;
  launch(ctx, residuals_kernel<T>, static_cast<unsigned>(std::min<int64_t>(count * sides, INT32_MAX)), kMatrixThreads,
         elements<const T>(x), elements<const T>(y), elements<const T>(solution), m, n, sides, count * sides,
         elements<T>(residuals));
}

}  // namespace

void register_lstsq(int backend) {
  for_types(Types<float, double>{},
            [&]<class T>(TypeTag<T>) { register_kernel("lstsq", backend, dtype_of<T>, lstsq<T>); });
}

}  // namespace shard::cuda
