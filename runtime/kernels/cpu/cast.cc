// The CPU kernel of cast, from every dtype to every dtype.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cast.cc"
#include "kernels/cpu/targets.h"

#include <bit>
#include <cmath>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// `x` as a float rounded to odd: where bits are cut off, the last one is set. Rounding that again to 16 bits gives what
/// rounding x at once would; rounding to nearest twice does not.
float to_odd_float(double x) {
  const float nearest = static_cast<float>(x);
  if (!(std::abs(nearest) <= std::numeric_limits<float>::max()) || static_cast<double>(nearest) == x) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

/// Floats outside the range of an integer type go to its ends and NaN to 0: C++ leaves that undefined.
template <class To, class C>
To convert(C x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != C(0);
  } else if constexpr (std::is_floating_point_v<C> && std::is_integral_v<To>) {
    constexpr C low = static_cast<C>(std::numeric_limits<To>::lowest());
    constexpr C above = static_cast<C>(std::numeric_limits<To>::max() / 2 + 1) * C(2);
    if (x >= above) return std::numeric_limits<To>::max();
    if (x <= low) return std::numeric_limits<To>::lowest();
    return x == x ? static_cast<To>(x) : To(0);
  } else if constexpr (is_half<To>) {
    if constexpr (std::is_same_v<C, float>) return To(x);
    else return To(to_odd_float(static_cast<double>(x)));
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void cast_row(const Row& row) {
  using C = Compute<From>;
  const From* x = static_cast<const From*>(row.in[0]);
  To* out = static_cast<To*>(row.out);
  for (int64_t i = 0, n = row.n; i < n; ++i) out[i] = convert<To, C>(static_cast<C>(x[i]));
}

template <class From>
void cast(const OpContext&, const DenseTensor& x, DType dtype, DenseTensor& out) {
  const RowLoop loop = visit_dtype(dtype, []<class To>(TypeTag<To>) -> RowLoop { return &cast_row<From, To>; });
  run_unary(loop, x, out);
}

void register_cast_here() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("cast", kBackend, dtype_of<T>, &cast<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_cast_here);
void register_cast() { HWY_DYNAMIC_DISPATCH(register_cast_here)(); }
}  // namespace shard::cpu
#endif
