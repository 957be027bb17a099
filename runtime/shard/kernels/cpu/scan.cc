// CPU kernels that scan along one axis in order: argmax, cumsum.
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

AxisView view_of(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten) {
  if (flatten) return {1, x.numel(), 1};
  return axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()));
}

template <class T>
int64_t largest_at(const T* x, int64_t size, int64_t stride) {
  using C = Compute<T>;
  int64_t best = 0;
  for (int64_t i = 1; i < size; ++i) {
    const C value = static_cast<C>(x[i * stride]);
    const C champion = static_cast<C>(x[best * stride]);
    if (champion != champion) break;  // the first NaN wins
    if (value > champion || value != value) best = i;
  }
  return best;
}

template <class T>
void argmax(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, DenseTensor& out) {
  const AxisView view = view_of(ctx, x, axis, flatten);
  const Box box = ctx.input_box(0, x);
  const int along =
      flatten || box.begin.rank() == 0 ? -1 : normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank());
  const int64_t begin = along < 0 ? 0 : box.begin[along];
  const T* data = x.data<T>();
  parallel_for(view.outer * view.inner, view.size, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at =
          begin + largest_at(data + i / view.inner * view.size * view.inner + i % view.inner, view.size, view.inner);
      if (out.dtype() == DType::int64) out.data<int64_t>()[i] = at;
      else out.data<int32_t>()[i] = static_cast<int32_t>(at);
    }
  });
}

/// Running sums of float are computed in double, so that long rows keep their accuracy.
template <class T>
using Running = std::conditional_t<is_float<T>, double, T>;

template <class T>
T rounded(Running<T> value) {
  if constexpr (is_half<T>) return T(static_cast<float>(value));
  else return static_cast<T>(value);
}

template <class T>
void cumsum(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, bool exclusive, bool reverse,
            DenseTensor& out) {
  const AxisView view = view_of(ctx, x, axis, flatten);
  parallel_for(view.outer * view.inner, view.size, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t base = i / view.inner * view.size * view.inner + i % view.inner;
      const T* from = x.data<T>() + base;
      T* to = out.data<T>() + base;
      Running<T> sum = 0;
      for (int64_t k = 0; k < view.size; ++k) {
        const int64_t at = (reverse ? view.size - 1 - k : k) * view.inner;
        const Running<T> next = wrap_add(sum, static_cast<Running<T>>(from[at]));
        to[at] = rounded<T>(exclusive ? sum : next);
        sum = next;
      }
    }
  });
}

}  // namespace

void register_scan() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("argmax", kBackend, dtype_of<T>, &argmax<T>); });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("cumsum", kBackend, dtype_of<T>, &cumsum<T>); });
}

}  // namespace shard::cpu
