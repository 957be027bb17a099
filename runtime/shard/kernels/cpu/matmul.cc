// The CPU kernels of matmul and of the gradient of a linear layer: OpenBLAS for float and double,
// plain loops for tiny matrices and integers.
#include <cblas.h>

#include <vector>

#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

constexpr int64_t kTiny = 4096;        // multiplications below which a BLAS call costs more than it saves
constexpr int64_t kBlasJob = 1 << 22;  // multiplications that justify a thread

/// One product [m, k] x [k, n], with the leading dimensions as stored.
struct Product {
  int64_t m, n, k;
  bool transpose_x, transpose_y;
};

template <class C>
void multiply_plain(const Product& p, const C* x, const C* y, C* out) {
  const int64_t xi = p.transpose_x ? 1 : p.k;
  const int64_t xk = p.transpose_x ? p.m : 1;
  for (int64_t i = 0; i < p.m; ++i) {
    C* row = out + i * p.n;
    std::fill(row, row + p.n, C(0));
    for (int64_t k = 0; k < p.k; ++k) {
      const C a = x[i * xi + k * xk];
      if (!p.transpose_y) {
        for (int64_t j = 0; j < p.n; ++j) row[j] = wrap_add(row[j], wrap_mul(a, y[k * p.n + j]));
      } else {
        for (int64_t j = 0; j < p.n; ++j) row[j] = wrap_add(row[j], wrap_mul(a, y[j * p.k + k]));
      }
    }
  }
}

/// Rows [begin, end) of a product by OpenBLAS, whose sizes are ints.
template <class C>
void multiply_blas(const Product& p, const C* x, const C* y, C* out, int64_t begin, int64_t end) {
  const auto tx = p.transpose_x ? CblasTrans : CblasNoTrans;
  const auto ty = p.transpose_y ? CblasTrans : CblasNoTrans;
  const C* from = x + (p.transpose_x ? begin : begin * p.k);
  const int m = static_cast<int>(end - begin), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const int ldx = static_cast<int>(p.transpose_x ? p.m : p.k), ldy = static_cast<int>(p.transpose_y ? p.k : p.n);
  if constexpr (std::is_same_v<C, float>) {
    cblas_sgemm(CblasRowMajor, tx, ty, m, n, k, 1.0f, from, ldx, y, ldy, 0.0f, out + begin * p.n, n);
  } else {
    cblas_dgemm(CblasRowMajor, tx, ty, m, n, k, 1.0, from, ldx, y, ldy, 0.0, out + begin * p.n, n);
  }
}

/// The offsets of each batch's matrices, with leading dims broadcast.
struct Batches {
  Dims out, x, y;  // leading dims; those of x and y aligned to the end of out

  int64_t index(const Dims& dims, int64_t batch) const {
    int64_t result = 0;
    int64_t stride = 1;
    for (int d = out.rank() - 1; d >= 0; --d) {
      const int at = d - (out.rank() - dims.rank());
      const int64_t i = batch % out[d];
      batch /= out[d];
      if (at < 0) continue;
      result += dims[at] == 1 ? 0 : i * stride;
      stride *= dims[at];
    }
    return result;
  }
};

Dims leading(const Dims& dims) {
  return Dims(std::span<const int64_t>(dims.begin(), static_cast<size_t>(std::max(dims.rank() - 2, 0))));
}

Product product_of(const DenseTensor& x, const DenseTensor& y, bool transpose_x, bool transpose_y) {
  const Dims& a = x.dims();
  const Dims& b = y.dims();
  Product p{1, 1, a[a.rank() - 1], transpose_x && a.rank() > 1, transpose_y && b.rank() > 1};
  if (a.rank() > 1) {
    p.m = a[p.transpose_x ? a.rank() - 1 : a.rank() - 2];
    p.k = a[p.transpose_x ? a.rank() - 2 : a.rank() - 1];
  }
  if (b.rank() > 1) p.n = b[p.transpose_y ? b.rank() - 2 : b.rank() - 1];
  return p;
}

template <class C>
void multiply_batches(Product p, const Batches& batches, const C* x, const C* y, C* out) {
  int64_t count = batches.out.numel();
  if (!p.transpose_x && batches.y.numel() == 1 &&
      batches.x == batches.out) {  // one matrix for all batches: one product
    p.m *= count;
    count = 1;
  }
  const int64_t size_x = p.m * p.k, size_y = p.k * p.n, size_out = p.m * p.n;
  const int64_t work = std::max<int64_t>(1, p.m * p.n * p.k);
  const auto at_x = [&](int64_t b) { return x + (count == 1 ? 0 : batches.index(batches.x, b) * size_x); };
  const auto at_y = [&](int64_t b) { return y + (count == 1 ? 0 : batches.index(batches.y, b) * size_y); };
  if (!std::is_floating_point_v<C> || work <= kTiny) {
    parallel_for(count, work, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) multiply_plain(p, at_x(b), at_y(b), out + b * size_out);
    });
    return;
  }
  if constexpr (std::is_floating_point_v<C>) {
    constexpr int64_t kRowBlock = 256;  // fixed, so that results do not depend on the number of threads
    const int64_t parts = work > kBlasJob ? (p.m + kRowBlock - 1) / kRowBlock : 1;
    const int64_t rows = parts > 1 ? kRowBlock : p.m;
    const int64_t cost = std::max<int64_t>(1, work / parts / (kBlasJob / kGrain));
    parallel_for(count * parts, cost, [&](int64_t begin, int64_t end) {
      for (int64_t job = begin; job < end; ++job) {
        const int64_t b = job / parts;
        const int64_t first = job % parts * rows;
        multiply_blas(p, at_x(b), at_y(b), out + b * size_out, first, std::min(first + rows, p.m));
      }
    });
  }
}

std::vector<float> to_floats(const OpContext& ctx, const DenseTensor& x) {
  std::vector<float> values(static_cast<size_t>(x.numel()));
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (is_half<T>) std::copy_n(x.data<T>(), values.size(), values.begin());
    else fail(ErrorCode::internal, "[{}] {} is not a 16-bit float", ctx.op, to_string(x.meta()));
  });
  return values;
}

void check_blas_sizes(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const Product& p) {
  if (std::max({p.m, p.n, p.k}) <= INT32_MAX) return;
  fail_check(ErrorCode::out_of_range,
             "[{}] x is {} and y is {}, but the BLAS library supports sizes of at most {}; split it", ctx.op,
             to_string(x.meta()), to_string(y.meta()), INT32_MAX);
}

template <class T>
void matmul(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool transpose_x, bool transpose_y,
            DenseTensor& out) {
  if (out.numel() == 0) return;
  const Product p = product_of(x, y, transpose_x, transpose_y);
  const int tail = (x.dims().rank() > 1 ? 1 : 0) + (y.dims().rank() > 1 ? 1 : 0);
  const Dims batch_dims(std::span<const int64_t>(out.dims().begin(), static_cast<size_t>(out.dims().rank() - tail)));
  const Batches batches{batch_dims, leading(x.dims()), leading(y.dims())};
  if (is_float<T>) check_blas_sizes(ctx, x, y, p);
  if constexpr (is_half<T>) {
    const std::vector<float> a = to_floats(ctx, x), b = to_floats(ctx, y);
    std::vector<float> c(static_cast<size_t>(out.numel()));
    multiply_batches(p, batches, a.data(), b.data(), c.data());
    for (size_t i = 0; i < c.size(); ++i) out.data<T>()[i] = T(c[i]);
  } else {
    multiply_batches(p, batches, x.data<T>(), y.data<T>(), out.data<T>());
  }
}

/// The elements of a float tensor in the type of arithmetic.
template <class T>
std::vector<Compute<T>> computed(const DenseTensor& x) {
  return std::vector<Compute<T>>(x.data<T>(), x.data<T>() + x.numel());
}

/// out = sums + added, which may be absent, rounded once to the dtype of out.
template <class C>
void store_sums(const std::vector<C>& sums, const DenseTensor& added, DenseTensor& out) {
  visit_dtype(out.dtype(), [&]<class R>(TypeTag<R>) {
    if constexpr (is_float<R>) {
      for (int64_t i = 0; i < out.numel(); ++i) {
        const C old = added.defined() ? static_cast<C>(static_cast<Compute<R>>(added.data<R>()[i])) : C(0);
        out.data<R>()[i] = R(static_cast<Compute<R>>(sums[static_cast<size_t>(i)] + old));
      }
    }
  });
}

/// Leading dims of x and dout count as one: the gradient of a weight is one product.
template <class T>
void linear_param_grad_add(const OpContext& ctx, const DenseTensor& x, const DenseTensor& dout,
                           const DenseTensor& dweight, const DenseTensor& dbias, bool, bool has_bias,
                           DenseTensor& dweight_out, DenseTensor& dbias_out) {
  using C = Compute<T>;
  const int last = x.dims().rank() - 1;
  const Product p{x.dims()[last], dout.dims()[last], x.dims().numel(0, last), true, false};
  check_blas_sizes(ctx, x, dout, p);
  const std::vector<C> slopes = computed<T>(dout);
  std::vector<C> sums(static_cast<size_t>(p.m * p.n));
  if (!sums.empty()) multiply_batches(p, Batches{}, computed<T>(x).data(), slopes.data(), sums.data());
  store_sums(sums, dweight, dweight_out);
  if (!has_bias) return;
  std::vector<C> columns(static_cast<size_t>(p.n));
  for (size_t i = 0; i < slopes.size(); ++i) columns[i % columns.size()] += slopes[i];
  store_sums(columns, dbias, dbias_out);
}

}  // namespace

void register_matmul() {
  openblas_set_num_threads(1);  // several ranks call it at once; threads are ours to divide
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("matmul", kBackend, dtype_of<T>, &matmul<T>); });
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("fused_linear_param_grad_add", kBackend, dtype_of<T>, &linear_param_grad_add<T>);
  });
}

}  // namespace shard::cpu
