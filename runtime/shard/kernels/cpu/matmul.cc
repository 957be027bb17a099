// The CPU kernels of matmul and of the gradient of a linear layer: batches of products (gemm.h), and
// plain loops for tiny matrices and integers.
#include <vector>

#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/openblas.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

constexpr int64_t kTiny = 4096;  // multiplications below which a call of a library costs more than it saves

template <class T, class R>
void multiply_plain(const Product& p, const T* x, const T* y, R* out) {
  using C = Compute<T>;
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  std::vector<C> sums(is_half<T> ? size_t(p.n) : 0);
  for (int64_t i = 0; i < p.m; ++i) {
    C* row;
    if constexpr (std::is_same_v<C, R>) row = out + i * p.n;
    else row = sums.data();
    std::fill(row, row + p.n, C(0));
    for (int64_t k = 0; k < p.k; ++k) {
      const C a = static_cast<C>(x[i * sx.row + k * sx.column]);
      for (int64_t j = 0; j < p.n; ++j)
        row[j] = wrap_add(row[j], wrap_mul(a, static_cast<C>(y[k * sy.row + j * sy.column])));
    }
    if constexpr (!std::is_same_v<C, R>)
      for (int64_t j = 0; j < p.n; ++j) out[i * p.n + j] = R(row[j]);
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

/// R is the dtype of x and y or, for 16-bit ones, float.
template <class T, class R>
void multiply_batches(Product p, const Batches& batches, const T* x, const T* y, R* out,
                      const Epilogue* epilogue = nullptr) {
  int64_t count = batches.out.numel();
  if (!p.transpose_x && batches.y.numel() == 1 &&
      batches.x == batches.out) {  // one matrix for all batches: one product
    p.m *= count;
    count = 1;
  }
  const int64_t size_x = p.m * p.k, size_y = p.k * p.n, size_out = p.m * p.n;
  const auto one = [&](int64_t b) {
    const T* const x_of = x + (count == 1 ? 0 : batches.index(batches.x, b) * size_x);
    const T* const y_of = y + (count == 1 ? 0 : batches.index(batches.y, b) * size_y);
    R* const out_of = out + b * size_out;
    if constexpr (is_float<T>) {
      if (p.work() > kTiny)
        return multiply(p, {dtype_of<T>, x_of, y_of}, {dtype_of<R>, out_of, epilogue, b * size_out});
    }
    multiply_plain(p, x_of, y_of, out_of);
    if (epilogue != nullptr) (*epilogue)(b * size_out, (b + 1) * size_out);
  };
  const bool in_order = count > 1 && batches.x == batches.out && batches.y == batches.out;
  const int64_t together = is_float<T> && in_order && p.work() > kTiny ? products_of_call(p, dtype_of<T>) : 1;
  const auto several = [&](int64_t b) {
    multiply_by_onednn(p, {dtype_of<T>, x + b * size_x, y + b * size_y}, {dtype_of<R>, out + b * size_out}, together);
    if (epilogue != nullptr) (*epilogue)(b * size_out, (b + together) * size_out);
  };
  const int64_t calls = (count + together - 1) / together;
  parallel_for(calls, std::max<int64_t>(1, together * p.work() / 16), [&](int64_t first, int64_t last) {
    for (int64_t call = first; call < last; ++call) {
      const int64_t begin = call * together, end = std::min(begin + together, count);
      if (together > 1 && end - begin == together) several(begin);
      else
        for (int64_t b = begin; b < end; ++b) one(b);
    }
  });
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
  const Epilogue* const epilogue = take_epilogue();
  if (out.numel() == 0) return;
  const Product p = product_of(x, y, transpose_x, transpose_y);
  const int tail = (x.dims().rank() > 1 ? 1 : 0) + (y.dims().rank() > 1 ? 1 : 0);
  const Dims batch_dims(std::span<const int64_t>(out.dims().begin(), static_cast<size_t>(out.dims().rank() - tail)));
  const Batches batches{batch_dims, leading(x.dims()), leading(y.dims())};
  if (is_float<T>) check_blas_sizes(ctx, x, y, p);
  multiply_batches(p, batches, x.data<T>(), y.data<T>(), out.data<T>(), epilogue);
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
  std::vector<C> sums(static_cast<size_t>(p.m * p.n));
  if (!sums.empty()) multiply_batches(p, Batches{}, x.data<T>(), dout.data<T>(), sums.data());
  store_sums(sums, dweight, dweight_out);
  if (!has_bias) return;
  std::vector<C> columns(static_cast<size_t>(p.n));
  for (int64_t k = 0; k < p.k; ++k)
    for (int64_t j = 0; j < p.n; ++j) columns[size_t(j)] += static_cast<C>(dout.data<T>()[k * p.n + j]);
  store_sums(columns, dbias, dbias_out);
}

}  // namespace

void register_matmul() {
  prepare_openblas();
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("matmul", kBackend, dtype_of<T>, &matmul<T>); });
  note_epilogue("matmul");
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("fused_linear_param_grad_add", kBackend, dtype_of<T>, &linear_param_grad_add<T>);
  });
}

}  // namespace shard::cpu
