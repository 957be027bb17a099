// Tensors made from numbers on CUDA: arange, linspace, logspace, eye, empty, triangle_indices. Compiled without fused operations.
#include "shard/kernels/cuda/convert.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/map.cuh"

namespace shard::cuda {
namespace {

/// Elements that are functions of their index: `numbers(i)` gives the number of local element i.
template <class T, class Numbers>
struct IndexBody {
  T* out;
  Numbers numbers;

  template <int N>
  __device__ void run(int64_t i) const {
    T values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = convert<T>(numbers(i * N + k));
    store_elements<N>(out, i, values);
  }
};

template <class T, class Numbers>
void fill_by_index(const OpContext& ctx, const Numbers& numbers, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  map(ctx, out.numel(), IndexBody<D, Numbers>{elements<D>(out), numbers}, elements<const D>(out));
}

/// The rows or columns of the elements of the lower or upper triangle of a matrix, in row-major order: a line of each.
struct TriangleIndices {
  int64_t rows, columns, offset;
  bool lower;
  int64_t line, first, width;  // of the local shard of the result

  /// The number of elements below the border of the rows before row `r`, whose borders are r + offset, if that is from 0 to `columns`.
  __device__ int64_t before_border(int64_t r) const {
    const auto sum = [this](int64_t m) {
      return m <= 0 ? 0 : m <= columns ? m * (m - 1) / 2 : columns * (columns - 1) / 2 + (m - columns) * columns;
    };
    const int64_t shift = offset + (lower ? 1 : 0);
    return sum(r + shift) - sum(shift);
  }
  __device__ int64_t before(int64_t r) const { return lower ? before_border(r) : r * columns - before_border(r); }

  __device__ int64_t operator()(int64_t i) const {
    const int64_t element = first + i % width;
    int64_t row = 0, end = rows;  // the last row with at most `element` elements before it
    while (end - row > 1) {
      const int64_t middle = row + (end - row) / 2;
      if (before(middle) <= element) row = middle;
      else end = middle;
    }
    if (line + i / width == 0) return row;
    const int64_t border = row + offset;
    return element - before(row) + (lower || border < 0 ? 0 : border);
  }
};

template <class T>
void triangle_indices(const OpContext& ctx, int rows, int columns, int offset, bool lower, DenseTensor& out) {
  if (out.numel() == 0) return;
  const Dims begin = ctx.output_box(0, out).begin;
  fill_by_index<T>(ctx, TriangleIndices{rows, columns, offset, lower, begin[0], begin[1], out.dims()[1]}, out);
}

struct IntegerRange {
  int64_t start, step, first;
  __device__ int64_t operator()(int64_t i) const { return wrap_add(start, wrap_mul(first + i, step)); }
};
struct FloatRange {
  double start, step;
  int64_t first;
  __device__ double operator()(int64_t i) const { return start + static_cast<double>(first + i) * step; }
};

template <class T>
void arange(const OpContext& ctx, const Scalar& start, const Scalar& step, DenseTensor& out) {
  const int64_t first = ctx.output_box(0, out).begin[0];
  if (start.is_integer() && step.is_integer())
    return fill_by_index<T>(ctx, IntegerRange{start.to<int64_t>(), step.to<int64_t>(), first}, out);
  fill_by_index<T>(ctx, FloatRange{start.to<double>(), step.to<double>(), first}, out);
}

#include "shard/kernels/formulas/exact_power.inc"

/// Numbers from the nearer end, so that the last one is `last`.
struct Spaced {
  double first, last, step;
  int64_t count, begin;
  __device__ double operator()(int64_t i) const {
    const int64_t k = begin + i;
    return k < (count + 1) / 2 ? first + step * static_cast<double>(k)
                               : last - step * static_cast<double>(count - 1 - k);
  }
};
struct Powers {
  Spaced exponents;
  double base;
  __device__ double operator()(int64_t i) const { return exact_power(base, exponents(i)); }
};

Spaced between(const OpContext& ctx, const Scalar& start, const Scalar& stop, const DenseTensor& out) {
  const Box box = ctx.output_box(0, out);
  const double first = start.to<double>(), last = stop.to<double>();
  const int64_t count = box.global[0];
  return {first, last, count > 1 ? (last - first) / static_cast<double>(count - 1) : 0, count, box.begin[0]};
}

template <class T>
void linspace(const OpContext& ctx, const Scalar& start, const Scalar& stop, DenseTensor& out) {
  fill_by_index<T>(ctx, between(ctx, start, stop, out), out);
}

template <class T>
void logspace(const OpContext& ctx, const Scalar& start, const Scalar& stop, const Scalar& base, DenseTensor& out) {
  fill_by_index<T>(ctx, Powers{between(ctx, start, stop, out), base.to<double>()}, out);
}

/// For a local shard of the matrix: the diagonal is where the global indices are equal.
struct OnDiagonal {
  int64_t columns, shift;
  __device__ int operator()(int64_t i) const { return i % columns == i / columns + shift ? 1 : 0; }
};

template <class T>
void eye(const OpContext& ctx, DenseTensor& out) {
  const Dims begin = ctx.output_box(0, out).begin;
  fill_by_index<T>(ctx, OnDiagonal{out.dims()[1], begin[0] - begin[1]}, out);
}

void empty(const OpContext&, DenseTensor&) {}

}  // namespace

void register_creation(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("eye", backend, dtype_of<T>, &eye<T>);
    register_kernel("empty", backend, dtype_of<T>, &empty);
  });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("arange", backend, dtype_of<T>, &arange<T>);
    register_kernel("linspace", backend, dtype_of<T>, &linspace<T>);
    register_kernel("logspace", backend, dtype_of<T>, &logspace<T>);
  });
  for_types(Types<int32_t, int64_t>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("triangle_indices", backend, dtype_of<T>, &triangle_indices<T>);
  });
}

}  // namespace shard::cuda
