// CPU kernels that make tensors from numbers: full, full_like, arange, linspace, logspace, eye, empty; and assign, the
// plain copy.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "shard/core/convert.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/exact_power.inc"
#undef SHARD_FORMULA_INLINE

template <class T>
void fill(const Scalar& value, DenseTensor& out) {
  const T element = value.to<T>();
  T* data = out.data<T>();
  parallel_for(out.numel(), 1, [&](int64_t begin, int64_t end) { std::fill(data + begin, data + end, element); });
}

template <class T>
void full(const OpContext&, const Scalar& value, DenseTensor& out) {
  fill<T>(value, out);
}

template <class T>
void full_like(const OpContext&, const DenseTensor&, const Scalar& value, DenseTensor& out) {
  fill<T>(value, out);
}

/// Each element is computed from its index, so that long ranges do not accumulate errors.
template <class T>
void arange(const OpContext& ctx, const Scalar& start, const Scalar& step, DenseTensor& out) {
  const int64_t first = ctx.output_box(0, out).begin[0];
  const bool integers = start.is_integer() && step.is_integer();
  T* data = out.data<T>();
  parallel_for(out.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (integers) data[i] = convert<T>(wrap_add(start.to<int64_t>(), wrap_mul(first + i, step.to<int64_t>())));
      else data[i] = convert<T>(start.to<double>() + static_cast<double>(first + i) * step.to<double>());
    }
  });
}

/// Elements `number(k)` for the global positions k of a dim of `count`: at(0) is start and at(count - 1) exactly stop.
template <class T, class Number>
void fill_between(const OpContext& ctx, const Scalar& start, const Scalar& stop, DenseTensor& out,
                  const Number& number) {
  const Box box = ctx.output_box(0, out);
  const double first = start.to<double>(), last = stop.to<double>();
  const int64_t count = box.global[0];
  const double step = count > 1 ? (last - first) / static_cast<double>(count - 1) : 0;
  T* data = out.data<T>();
  parallel_for(out.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t k = box.begin[0] + i;
      // From the nearer end, so that the last element is stop.
      const double at = k < (count + 1) / 2 ? first + step * static_cast<double>(k)
                                            : last - step * static_cast<double>(count - 1 - k);
      data[i] = convert<T>(number(at));
    }
  });
}

template <class T>
void linspace(const OpContext& ctx, const Scalar& start, const Scalar& stop, DenseTensor& out) {
  fill_between<T>(ctx, start, stop, out, [](double at) { return at; });
}

template <class T>
void logspace(const OpContext& ctx, const Scalar& start, const Scalar& stop, const Scalar& base, DenseTensor& out) {
  fill_between<T>(ctx, start, stop, out, [b = base.to<double>()](double at) { return exact_power(b, at); });
}

/// For a local shard of the matrix: the diagonal is where the global indices are equal.
template <class T>
void eye(const OpContext& ctx, DenseTensor& out) {
  const Dims begin = ctx.output_box(0, out).begin;
  const int64_t columns = out.dims()[1];
  const T one = convert<T>(1), zero = convert<T>(0);
  parallel_for(out.dims()[0], columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      T* line = out.data<T>() + row * columns;
      std::fill(line, line + columns, zero);
      const int64_t column = begin[0] + row - begin[1];
      if (column >= 0 && column < columns) line[column] = one;
    }
  });
}

void empty(const OpContext&, DenseTensor&) {}

void assign(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  if (out.raw() == x.raw()) return;  // in place
  const size_t size = size_of(x.dtype());
  const char* from = x.data<char>();
  char* to = out.data<char>();
  parallel_for(x.numel(), 1, [&](int64_t begin, int64_t end) {
    std::memcpy(to + static_cast<size_t>(begin) * size, from + static_cast<size_t>(begin) * size,
                static_cast<size_t>(end - begin) * size);
  });
}

}  // namespace

void register_creation() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("full", kBackend, dtype_of<T>, &full<T>);
    register_kernel("full_like", kBackend, dtype_of<T>, &full_like<T>);
    register_kernel("eye", kBackend, dtype_of<T>, &eye<T>);
  });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("arange", kBackend, dtype_of<T>, &arange<T>);
    register_kernel("linspace", kBackend, dtype_of<T>, &linspace<T>);
    register_kernel("logspace", kBackend, dtype_of<T>, &logspace<T>);
  });
  register_for_all("assign", &assign);
  register_for_all("empty", &empty);
}

}  // namespace shard::cpu
