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
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = std::numbers::pi;
constexpr double kSeries = 10;  // from here on the asymptotic series are exact to the last bits

/// c[0] + c[1] z + ...
template <size_t n>
HWY_INLINE V polynomial(const double (&c)[n], V z) {
  V sum = c[n - 1];
  for (size_t i = n - 1; i-- > 0;) sum = sum * z + V(c[i]);
  return sum;
}

HWY_INLINE bool any(V::Mask mask) { return !hn::AllFalse(V::Tag(), mask); }

/// By its recurrence up to 10, its asymptotic series there, and its reflection below 0 (Abramowitz
/// and Stegun, 6.3.5, 6.3.18, 6.3.7).
struct Digamma {
  static HWY_INLINE V apply(V x) {
    const auto negative = x < V(0);
    V y = select(negative, 1.0 - x, x);
    // The sum of 1 / (y + k) as one fraction.
    V above = 0, below = 1;
    for (int k = 0; k < static_cast<int>(kSeries); ++k) {
      const auto small = y < V(kSeries);
      above = select(small, above * y + below, above);
      below = select(small, below * y, below);
      y = select(small, y + 1.0, y);
    }
    // B(2 k) / (2 k) for the Bernoulli numbers B
    constexpr double kTerms[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12};
    const V z = select(y < V(1e17), 1.0 / (y * y), V(0));
    V value = log(y) - 0.5 / y - z * polynomial(kTerms, z) - above / below;
    if (any(negative)) {
      const V fraction = x - round(x);
      const V reflected = value - kPi / tan(kPi * fraction);
      value = select(negative, select(fraction == V(0), V(kNaN), reflected), value);
    }
    return select(x == V(0), copysign(V(kInfinity), -x), value);
  }
};

/// The derivative of digamma, in the same way (6.4.6, 6.4.12, 6.4.7).
struct Trigamma {
  static HWY_INLINE V apply(V x) {
    const auto negative = x < V(0);
    V y = select(negative, 1.0 - x, x);
    // The sum of 1 / (y + k)^2 as one fraction.
    V above = 0, below = 1;
    for (int k = 0; k < static_cast<int>(kSeries); ++k) {
      const auto small = y < V(kSeries);
      const V square = y * y;
      above = select(small, above * square + below, above);
      below = select(small, below * square, below);
      y = select(small, y + 1.0, y);
    }
    // the Bernoulli numbers B(2 k)
    constexpr double kTerms[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730.0, 7.0 / 6};
    const V inverse = 1.0 / y, z = inverse * inverse;
    V value = inverse + 0.5 * z + inverse * z * polynomial(kTerms, z) + above / below;
    if (any(negative)) {
      const V sine = sin(kPi * (x - round(x)));
      const V whole = kPi / sine;
      value = select(negative, select(sine == V(0), V(kInfinity), whole * whole - value), value);
    }
    return select(x == V(-kInfinity), V(kInfinity), value);
  }
};

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

/// The sum of (q + k)^-s over k >= 0, for an integer s > 1: by the Euler-Maclaurin formula, as in
/// Cephes' zeta.c (S. L. Moshier).
double hurwitz_zeta(double s, double q) {
  if (std::isnan(q)) return q;
  if (q <= 0 && q == std::floor(q)) return kInfinity;
  if (q > 1e8) return (1 / (s - 1) + 1 / (2 * q)) * std::pow(q, 1 - s);
  double sum = std::pow(q, -s), at = q, term = sum;
  for (int k = 0; k < 9 || at <= 9; ++k) {
    at += 1;
    term = std::pow(at, -s);
    sum += term;
    if (std::abs(term / sum) < 1e-17) return sum;
  }
  // (2 k)! / B(2 k)
  constexpr double kDivisors[] = {12.0,
                                  -720.0,
                                  30240.0,
                                  -1209600.0,
                                  47900160.0,
                                  -1.8924375803183791606e9,
                                  7.47242496e10,
                                  -2.950130727918164224e12,
                                  1.1646782814350067249e14,
                                  -4.5979787224074726105e15,
                                  1.8152105401943546773e17,
                                  -7.1661652561756670113e18};
  sum += term * at / (s - 1) - 0.5 * term;
  double rising = 1;
  int k = 0;
  for (const double divisor : kDivisors) {
    rising *= s + k++;
    term /= at;
    const double correction = rising * term / divisor;
    sum += correction;
    if (std::abs(correction / sum) < 1e-17) break;
    rising *= s + k++;
    term /= at;
  }
  return sum;
}

/// (-1)^(n + 1) n!, the factor of the derivative number n of digamma.
double polygamma_factor(int n) {
  const double factorial = std::tgamma(n + 1.0);
  return n % 2 == 0 ? -factorial : factorial;
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
