// Decompositions by Cholesky and LU on CUDA, and what is solved with them, by cuSOLVER. Our matrices are row-major: to it they are
// transposed.
#include "shard/kernels/cuda/linalg.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cusolver.cuh"

namespace shard::cuda {
namespace {

using cpu::broadcast_numbers;
using cpu::count_of;
using cpu::leading;
using cpu::Matrices;

constexpr const char* kSingular = "a matrix of x is singular";

/// Zeros beside the triangle that a decomposition has written.
template <class T>
struct ClearTriangle {
  T* data;
  int64_t n;
  bool upper;  // is kept
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / n % n, column = i % n;
    if (upper ? column < row : column > row) data[i] = T(0);
  }
};

template <class T>
void cholesky(const OpContext& ctx, const DenseTensor& x, bool upper, DenseTensor& out) {
  const Matrices m(x);
  count_of(ctx, m.rows);
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  copy_all(x, out);
  const DeviceArray<int> infos(m.count);
  Solver<T>::potrf(!upper, m.rows, elements<T>(out), m.count, infos.get());
  for_each(ctx, out.numel(), ClearTriangle<T>{elements<T>(out), m.rows, upper});
  for_each(ctx, m.count, ReportFailures{infos.get()},
           MatrixCheck(ctx, x, "a matrix of x is not positive definite; add a small multiple of the identity"));
}

/// out[i] = the element of x that broadcasts to it.
template <class T>
struct Expand {
  T* to;
  const T* from;
  Strided<1> shape;
  __device__ void operator()(int64_t i) const {
    int64_t at[1];
    shape.locate(i, at);
    to[i] = from[at[0]];
  }
};

/// Copies y, whose last `inner` dims are those of `dims`, to a tensor of these, to which its leading dims broadcast.
template <class T>
void broadcast_to(const OpContext& ctx, const DenseTensor& y, const Dims& dims, T* to) {
  const Dims strides = broadcast_strides(y.dims());
  Strided<1> shape;
  for (int d = 0; d < dims.rank(); ++d) shape.append(dims[d], {stride_at(strides, dims.rank(), d)});
  for_each(ctx, dims.numel(), Expand<T>{to, elements<const T>(y), shape});
}

/// Reports matrices with a 0 on their diagonal.
template <class T>
struct FindZeros {
  const T* data;
  int64_t n;
  __device__ void operator()(int64_t i, const MatrixCheck& check) const {
    const int64_t matrix = i / n, row = i % n;
    if (data[matrix * n * n + row * (n + 1)] == T(0)) check.report(matrix, row);
  }
};

template <class T>
void triangular_solve(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool upper, bool transpose,
                      bool unitriangular, DenseTensor& out) {
  const Matrices factors(x), m(out);
  count_of(ctx, m.rows);
  count_of(ctx, m.columns);
  const DeviceScope scope(out.device().index);
  const T* const from = elements<const T>(x);
  if (!unitriangular) {
    for_each(ctx, factors.count * factors.rows, FindZeros<T>{from, factors.rows},
             MatrixCheck(ctx, x, "a matrix of x is singular: it has a 0 on its diagonal"));
  }
  if (out.numel() == 0) return;
  T* const to = elements<T>(out);
  broadcast_to(ctx, y, out.dims(), to);
  const std::vector<int64_t> numbers = broadcast_numbers(leading(x.dims(), 2), leading(out.dims(), 2));
  // To cuBLAS x and out are transposed: out' x' = y'.
  for (int64_t i = 0; i < m.count; ++i) {
    Solver<T>::trsm(!upper, transpose, unitriangular, m.columns, m.rows,
                    from + numbers[static_cast<size_t>(i)] * factors.size(), to + i * m.size());
  }
}

/// The LU decompositions of the matrices of a tensor, which are transposed to cuSOLVER.
template <class T>
class Decompositions {
 public:
  Decompositions(const OpContext& ctx, const DenseTensor& x)
      : m_(x), factors_(x.numel()), pivots_(m_.count * m_.rows), infos_(m_.count) {
    count_of(ctx, m_.rows);
    if (x.numel() == 0) return;
    check(cudaMemcpyAsync(factors_.get(), x.raw(), x.meta().bytes(), cudaMemcpyDeviceToDevice, stream()),
          "cudaMemcpyAsync");
    Solver<T>::getrf(m_.rows, m_.rows, factors_.get(), pivots_.get(), m_.count, infos_.get());
  }

  const Matrices& matrices() const { return m_; }
  const T* factors() const { return factors_.get(); }
  const int64_t* pivots() const { return pivots_.get(); }
  void check_singular(const OpContext& ctx, const DenseTensor& x) const {
    if (x.numel() != 0) for_each(ctx, m_.count, ReportFailures{infos_.get()}, MatrixCheck(ctx, x, kSingular));
  }
  /// Overwrites the columns of b by the solutions for matrix i, or its transpose.
  void solve(int64_t i, bool transpose, int64_t columns, T* b) const {
    Solver<T>::getrs(transpose, m_.rows, columns, factors_.get() + i * m_.size(), pivots_.get() + i * m_.rows, b,
                     infos_.get() + i);
  }

 private:
  Matrices m_;
  DeviceArray<T> factors_;
  DeviceArray<int64_t> pivots_;
  DeviceArray<int> infos_;
};

template <class T>
void solve(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const Decompositions<T> decomposed(ctx, x);
  decomposed.check_singular(ctx, x);
  if (out.numel() == 0) return;
  const int matrix_dims = y.dims().rank() == 1 ? 1 : 2;
  const int64_t n = decomposed.matrices().rows, k = matrix_dims == 1 ? 1 : y.dims()[y.dims().rank() - 1];
  count_of(ctx, k);
  const Dims batch = leading(out.dims(), matrix_dims);
  T* const to = elements<T>(out);
  broadcast_to(ctx, y, out.dims(), to);
  const std::vector<int64_t> numbers = broadcast_numbers(leading(x.dims(), 2), batch);
  const DeviceArray<T> columns(k == 1 ? 0 : out.numel());  // right sides, each contiguous
  T* const sides = k == 1 ? to : columns.get();
  if (k != 1) transpose_matrices<T>(ctx, sides, to, n, k, batch.numel());
  for (int64_t i = 0; i < batch.numel(); ++i)
    decomposed.solve(numbers[static_cast<size_t>(i)], true, k, sides + i * n * k);
  if (k != 1) transpose_matrices<T>(ctx, to, sides, k, n, batch.numel());
}

template <class T>
void inverse(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const Decompositions<T> decomposed(ctx, x);
  decomposed.check_singular(ctx, x);
  const Matrices& m = decomposed.matrices();
  if (out.numel() == 0) return;
  for_each(ctx, out.numel(), FillIdentity<T>{elements<T>(out), m.rows, m.size()});
  for (int64_t i = 0; i < m.count; ++i) decomposed.solve(i, false, m.rows, elements<T>(out) + i * m.size());
}

/// What is on the diagonals of decompositions.
template <class T>
struct Diagonals {
  const T* factors;
  const int64_t* pivots;
  int64_t n;

  __device__ double at(int64_t i, int64_t row) const { return static_cast<double>(factors[i * n * n + row * (n + 1)]); }
  /// Whether an odd number of rows was exchanged.
  __device__ bool odd(int64_t i) const {
    bool odd = false;
    for (int64_t row = 0; row < n; ++row) odd = odd != (pivots[i * n + row] != row + 1);
    return odd;
  }
};

template <class T>
struct Determinant {
  T* out;
  Diagonals<T> of;
  __device__ void operator()(int64_t i) const {
    // The exponent is apart, so that the product does not overflow on the way.
    double product = of.odd(i) ? -1 : 1;
    int64_t exponent = 0;
    for (int64_t row = 0; row < of.n; ++row) {
      int moved = 0;
      product = frexp(product * of.at(i, row), &moved);
      exponent += moved;
    }
    out[i] = static_cast<T>(ldexp(product, static_cast<int>(min(max(exponent, int64_t{-5000}), int64_t{5000}))));
  }
};

template <class T>
struct LogDeterminant {
  T* out;
  int64_t count;
  Diagonals<T> of;
  __device__ void operator()(int64_t i) const {
    double sign = of.odd(i) ? -1 : 1, logarithm = 0;
    for (int64_t row = 0; row < of.n; ++row) {
      const double factor = of.at(i, row);
      sign = factor != factor ? factor : factor == 0 ? 0 : factor < 0 ? -sign : sign;
      logarithm += log(fabs(factor));
    }
    out[i] = static_cast<T>(sign);
    out[count + i] = static_cast<T>(logarithm);
  }
};

template <class T>
void determinant(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const Decompositions<T> decomposed(ctx, x);
  const Diagonals<T> of{decomposed.factors(), decomposed.pivots(), decomposed.matrices().rows};
  for_each(ctx, out.numel(), Determinant<T>{elements<T>(out), of});
}

template <class T>
void slogdet(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const Decompositions<T> decomposed(ctx, x);
  const int64_t count = decomposed.matrices().count;
  const Diagonals<T> of{decomposed.factors(), decomposed.pivots(), decomposed.matrices().rows};
  for_each(ctx, count, LogDeterminant<T>{elements<T>(out), count, of});
}

/// Overwrites matrices [m, n] by their factors, without exchanging rows: a block for each. Infos are as LAPACK's.
template <class T>
__global__ void factor_in_order_kernel(T* matrices, int64_t m, int64_t n, int64_t count, int* infos) {
  const int64_t k_end = m < n ? m : n, threads = blockDim.x, first = threadIdx.x;
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    T* const a = matrices + i * m * n;
    int info = 0;
    for (int64_t k = 0; k < k_end; ++k) {
      __syncthreads();
      const T pivot = a[k * n + k];
      if (pivot == T(0) && info == 0) info = static_cast<int>(k + 1);
      for (int64_t row = k + 1 + first; row < m; row += threads) {
        T& to = a[row * n + k];
        if (to != T(0)) to /= pivot;  // also beside a pivot of 0
      }
      __syncthreads();
      const int64_t width = n - k - 1;
      for (int64_t at = first; at < (m - k - 1) * width; at += threads) {
        const int64_t row = k + 1 + at / width, column = k + 1 + at % width;
        const T factor = a[row * n + k];
        if (factor != T(0)) a[row * n + column] -= factor * a[k * n + column];
      }
    }
    if (first == 0) infos[i] = info;
  }
}

struct NarrowPivots {
  int32_t* to;
  const int64_t* from;
  __device__ void operator()(int64_t i) const { to[i] = static_cast<int32_t>(from[i]); }
};
struct CountPivots {
  int32_t* to;
  int64_t k;
  __device__ void operator()(int64_t i) const { to[i] = static_cast<int32_t>(i % k + 1); }
};

/// out may be x.
template <class T>
void lu(const OpContext& ctx, const DenseTensor& x, bool pivot, DenseTensor& out, DenseTensor& pivots,
        DenseTensor& infos) {
  const Matrices m(x);
  const int64_t k = std::min(count_of(ctx, m.rows), count_of(ctx, m.columns));
  const DeviceScope scope(out.device().index);
  if (x.numel() == 0) return fill_zeros(infos);
  T* const to = elements<T>(out);
  if (pivot) {
    const DeviceArray<T> columns(x.numel());
    const DeviceArray<int64_t> exchanges(m.count * k);
    transpose_matrices<T>(ctx, columns.get(), elements<const T>(x), m.rows, m.columns, m.count);
    Solver<T>::getrf(m.rows, m.columns, columns.get(), exchanges.get(), m.count, elements<int>(infos));
    transpose_matrices<T>(ctx, to, columns.get(), m.columns, m.rows, m.count);
    for_each(ctx, m.count * k, NarrowPivots{elements<int32_t>(pivots), exchanges.get()});
    return;
  }
  copy_all(x, out);
  launch(ctx, factor_in_order_kernel<T>, static_cast<unsigned>(std::min<int64_t>(m.count, INT32_MAX)), kMatrixThreads,
         to, m.rows, m.columns, m.count, elements<int>(infos));
  for_each(ctx, m.count * k, CountPivots{elements<int32_t>(pivots), k});
}

/// The matrix p [m, m] for which p times the rows in their final order are the rows before k exchanges; it has zeros. `order` has m
/// numbers for each matrix. A wrong exchange is left out.
template <class T>
struct UnpackExchanges {
  T* p;
  int64_t* order;
  const int32_t* exchanges;
  int64_t k, m;
  __device__ void operator()(int64_t matrix) const {
    int64_t* const rows = order + matrix * m;
    for (int64_t i = 0; i < m; ++i) rows[i] = i;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t other = exchanges[matrix * k + i] - 1;
      if (other < 0 || other >= m) continue;
      const int64_t row = rows[i];
      rows[i] = rows[other];
      rows[other] = row;
    }
    for (int64_t i = 0; i < m; ++i) p[(matrix * m + rows[i]) * m + i] = T(1);
  }
};

/// One of the factors that are packed into a matrix [m, n]: l [m, k] or u [k, n].
template <class T>
struct UnpackFactor {
  T* to;
  const T* from;
  int64_t m, n, rows, columns;
  bool lower;
  __device__ void operator()(int64_t i) const {
    const int64_t column = i % columns, row = i / columns % rows, matrix = i / columns / rows;
    const T packed = from[(matrix * m + row) * n + column];
    to[i] = lower ? (column < row ? packed : T(column == row ? 1 : 0)) : (column < row ? T(0) : packed);
  }
};

template <class T>
void lu_unpack(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool unpack_ludata, bool unpack_pivots,
               DenseTensor& pmat, DenseTensor& l, DenseTensor& u) {
  const Matrices packed(x);
  const int64_t m = packed.rows, n = packed.columns, k = std::min(m, n);
  const DeviceScope scope(x.device().index);
  if (unpack_pivots) {
    if (y.numel() > 0) {
      launch(ctx, check_indices_kernel<Indices>, grid_for(y.numel(), kMatrixThreads), kMatrixThreads, Indices(y),
             y.numel(), IndexCheck(ctx, 1, "y", y, 1, m + 1));
    }
    fill_zeros(pmat);
    const DeviceArray<int64_t> order(packed.count * m);
    for_each(ctx, m == 0 ? 0 : packed.count,
             UnpackExchanges<T>{elements<T>(pmat), order.get(), elements<const int32_t>(y), k, m});
  }
  if (!unpack_ludata) return;
  const T* const from = elements<const T>(x);
  for_each(ctx, l.numel(), UnpackFactor<T>{elements<T>(l), from, m, n, m, k, true});
  for_each(ctx, u.numel(), UnpackFactor<T>{elements<T>(u), from, m, n, k, n, false});
}

}  // namespace

void register_linalg(int backend) {
  for_types(Types<float, double>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("cholesky", backend, dtype_of<T>, cholesky<T>);
    register_kernel("triangular_solve", backend, dtype_of<T>, triangular_solve<T>);
    register_kernel("solve", backend, dtype_of<T>, solve<T>);
    register_kernel("inverse", backend, dtype_of<T>, inverse<T>);
    register_kernel("determinant", backend, dtype_of<T>, determinant<T>);
    register_kernel("slogdet", backend, dtype_of<T>, slogdet<T>);
    register_kernel("lu", backend, dtype_of<T>, lu<T>);
    register_kernel("lu_unpack", backend, dtype_of<T>, lu_unpack<T>);
  });
}

}  // namespace shard::cuda
