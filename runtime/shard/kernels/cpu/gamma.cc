// CPU kernels of digamma and its derivatives, which are computed in double whatever the dtype. lgamma is in
// transcendental.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/gamma.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

using V = Vector<double>;
HWY_INLINE bool any(V::Mask mask) { return !hn::AllFalse(V::Tag(), mask); }

#include "shard/kernels/formulas/gamma.inc"

/// A formula in double of a row of T. What does not fill a vector is computed in one as well, so the bits of an element do
/// not depend on its place.
template <class Formula, class T>
void double_row(const Row& row) {
  constexpr int64_t kBlock = 256;
  HWY_ALIGN double block[kBlock];
  T* const to = static_cast<T*>(row.out);
  for (int64_t i = 0; i < row.n; i += kBlock) {
    const int64_t n = std::min(kBlock, row.n - i);
    const T* const from = static_cast<const T*>(row.in[0]) + i * row.step[0];
    for (int64_t j = 0; j < n; ++j)
      block[j] = static_cast<double>(static_cast<Compute<T>>(from[row.step[0] == 0 ? 0 : j]));
    for (int64_t j = n; j % V::kLanes != 0; ++j) block[j] = 1;
    for (int64_t j = 0; j < n; j += V::kLanes) Formula::apply(V::load(block + j)).store(block + j);
    for (int64_t j = 0; j < n; ++j) to[i + j] = static_cast<T>(static_cast<Compute<T>>(block[j]));
  }
}

template <class T>
void digamma(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  run_unary(&double_row<Digamma, T>, x, out);
}

struct Polygamma {
  int order;
  double factor;
};
template <class T>
void polygamma(const OpContext& ctx, const DenseTensor& x, int n, DenseTensor& out) {
  const auto loop = [](const Row& row) {
    const Polygamma& p = *static_cast<const Polygamma*>(row.params);
    const T* from = static_cast<const T*>(row.in[0]);
    T* to = static_cast<T*>(row.out);
    for (int64_t i = 0; i < row.n; ++i)
      to[i] =
          static_cast<T>(static_cast<Compute<T>>(p.factor * hurwitz_zeta(p.order + 1.0, static_cast<double>(from[i]))));
  };
  if (n == 0) return digamma<T>(ctx, x, out);
  if (n == 1) return run_unary(&double_row<Trigamma, T>, x, out);
  const Polygamma params{n, polygamma_factor(n)};
  run_unary(loop, x, out, &params);
}

void register_gamma_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("digamma", kBackend, dtype_of<T>, &digamma<T>);
    register_kernel("polygamma", kBackend, dtype_of<T>, &polygamma<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_gamma_for_target);
void register_gamma() { HWY_DYNAMIC_DISPATCH(register_gamma_for_target)(); }
}  // namespace shard::cpu
#endif
