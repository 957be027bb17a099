// The kernels of the counting backend: simple loops, one function for each kernel and dtype.
#include <algorithm>
#include <type_traits>

#include <shard/kernel.h>
#include "counting_backend.h"

using namespace shard;

namespace counting {
namespace {

/// The type in which sums and products of T are computed.
template <class T>
using Compute = std::conditional_t<sizeof(T) == 2, float, T>;

struct Add {
  template <class C>
  C operator()(C x, C y) const {
    return static_cast<C>(x + y);
  }
};
struct Multiply {
  template <class C>
  C operator()(C x, C y) const {
    return static_cast<C>(x * y);
  }
};
struct Maximum {
  template <class C>
  C operator()(C x, C y) const {
    return x > y || x != x ? x : y;
  }
};

/// The index in a tensor of shape `dims`, which broadcasts to `out`, of the element at `index` of
/// `out`.
int64_t source_of(int64_t index, const Dims& out, const Dims& dims) {
  int64_t position = 0, stride = 1;
  for (int d = out.rank() - 1, e = dims.rank() - 1; e >= 0; --d, --e) {
    if (dims[e] != 1) position += index % out[d] * stride;
    index /= out[d];
    stride *= dims[e];
  }
  return position;
}

template <class Op, class T>
void binary(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  ++counters().launches;
  using C = Compute<T>;
  for (int64_t i = 0; i < out.numel(); ++i) {
    const C a = static_cast<C>(x.data<T>()[source_of(i, out.dims(), x.dims())]);
    const C b = static_cast<C>(y.data<T>()[source_of(i, out.dims(), y.dims())]);
    out.data<T>()[i] = static_cast<T>(Op()(a, b));
  }
}

template <class T>
void relu(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  ++counters().launches;
  using C = Compute<T>;
  for (int64_t i = 0; i < out.numel(); ++i) {
    const C value = static_cast<C>(x.data<T>()[i]);
    out.data<T>()[i] = static_cast<T>(value < C(0) ? C(0) : value);
  }
}

template <class T>
void transpose(const OpContext& ctx, const DenseTensor& x, const IntArray& perm, DenseTensor& out) {
  ++counters().launches;
  Dims strides = x.dims();  // of x, in elements
  for (int64_t stride = 1, d = x.dims().rank() - 1; d >= 0; --d) {
    strides[static_cast<int>(d)] = stride;
    stride *= x.dims()[static_cast<int>(d)];
  }
  for (int64_t i = 0; i < out.numel(); ++i) {
    int64_t rest = i, position = 0;
    for (int d = out.dims().rank() - 1; d >= 0; --d) {
      const int from = normalize_axis(ctx.op, "perm", perm[d], out.dims().rank());
      position += rest % out.dims()[d] * strides[from];
      rest /= out.dims()[d];
    }
    out.data<T>()[i] = x.data<T>()[position];
  }
}

template <class T>
void register_for(int backend) {
  register_kernel("transpose", backend, dtype_of<T>, &transpose<T>);
  if constexpr (!std::is_same_v<T, bool>) {
    register_kernel("add", backend, dtype_of<T>, &binary<Add, T>);
    register_kernel("multiply", backend, dtype_of<T>, &binary<Multiply, T>);
    register_kernel("maximum", backend, dtype_of<T>, &binary<Maximum, T>);
    register_kernel("relu", backend, dtype_of<T>, &relu<T>);
  }
}

}  // namespace

void register_kernels(int backend) {
  for (int i = 0; i < kNumDTypes; ++i) {
    visit_dtype(static_cast<DType>(i), [&]<class T>(TypeTag<T>) { register_for<T>(backend); });
  }
}

}  // namespace counting
