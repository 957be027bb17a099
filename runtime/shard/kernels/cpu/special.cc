// CPU kernels of special functions of one tensor: Bessel functions, the inverse of the error function. They are computed
// element by element in double; digamma is in gamma.cc.
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double polynomial(std::span<const double> coefficients, double x) {
  double sum = 0;
  for (size_t k = coefficients.size(); k-- > 0;) sum = sum * x + coefficients[k];
  return sum;
}

/// The sum of c[k] T_k(x) for Chebyshev polynomials T_k, by Clenshaw's recurrence.
double chebyshev(std::span<const double> c, double x) {
  double next = 0, after = 0;
  for (size_t k = c.size() - 1; k > 0; --k) {
    const double now = 2 * x * next - after + c[k];
    after = next;
    next = now;
  }
  return x * next - after + c[0];
}

/// The quantile of the normal distribution, by M. J. Wichura, Algorithm AS 241, Applied Statistics 37
/// (1988): rational functions of (0.425^2 - q^2) in the middle and of sqrt(-log(p)) in the tails.
constexpr double kMiddle[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                              1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                              3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr double kMiddleDivisor[] = {1.0,
                                     4.2313330701600911252e+1,
                                     6.8718700749205790830e+2,
                                     5.3941960214247511077e+3,
                                     2.1213794301586595867e+4,
                                     3.9307895800092710610e+4,
                                     2.8729085735721942674e+4,
                                     5.2264952788528545610e+3};
constexpr double kNear[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                            3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                            2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kNearDivisor[] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
constexpr double kFar[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                           2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr double kFarDivisor[] = {1.0,
                                  5.99832206555887937690e-1,
                                  1.36929880922735805310e-1,
                                  1.48753612908506148525e-2,
                                  7.86869131145613259100e-4,
                                  1.84631831751005468180e-5,
                                  1.42151175831644588870e-7,
                                  2.04426310338993978564e-15};

double erfinv(double x) {
  if (!(std::abs(x) < 1)) return std::abs(x) == 1 ? std::copysign(kInfinity, x) : kNaN;
  const double q = 0.5 * x;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return std::numbers::sqrt2 * 0.5 * q * (polynomial(kMiddle, r) / polynomial(kMiddleDivisor, r));
  }
  const double r = std::sqrt(-std::log(0.5 * (1 - std::abs(x))));
  const double size = r <= 5 ? polynomial(kNear, r - 1.6) / polynomial(kNearDivisor, r - 1.6)
                             : polynomial(kFar, r - 5) / polynomial(kFarDivisor, r - 5);
  return std::copysign(std::numbers::sqrt2 * 0.5 * size, x);
}

// Chebyshev coefficients, as in Cephes' i0.c and i1.c but computed anew in 40 digits: Small of
// exp(-x) I0(x), and of exp(-x) I1(x) / x, as a function of x / 4 - 1 up to 8; Large of exp(-x)
// sqrt(x) I(x), as a function of 16 / x - 1 from 8 on.
constexpr double kI0Small[] = {
    0.33839763720473804,    -0.3046826723431984,     0.17162090152220878,    -0.094901097048047644,
    0.049305284239670708,   -0.023737414805899469,   0.010546460394594998,   -0.0043243099950505759,
    0.0016394756169413358,  -0.00057637557453858237, 0.00018850288509584166, -5.7541950100821037e-5,
    1.6448448070728897e-5,  -4.4167383584587506e-6,  1.1173875391201037e-6,  -2.6707938539406117e-7,
    6.0469950225419189e-8,  -1.300025009986248e-8,   2.6598237246823867e-9,  -5.1897956016352629e-10,
    9.6758090353732369e-11, -1.7268262914415557e-11, 2.9550526631296398e-12, -4.8564467831119295e-13,
    7.6761854986049356e-14, -1.1685332877993452e-14, 1.715391285555133e-15,  -2.4312798465479547e-16,
    3.3307945188222381e-17, -4.4153416464793394e-18, 5.6691780069214962e-19};
constexpr double kI0Large[] = {
    0.40224520550705442,     0.0033691164782556941,   6.889758346916824e-5,    2.8913705208347565e-6,
    2.0489185894690637e-7,   2.2666689904981781e-8,   3.3962320257083863e-9,   4.9406023882249696e-10,
    1.1889147107846438e-11,  -3.1499165279632414e-11, -1.3215811840447713e-11, -1.7941785315068061e-12,
    7.1801244513836662e-13,  3.8527783827421427e-13,  1.5400862175214098e-14,  -4.1505693472872221e-14,
    -9.5548466988283076e-15, 3.8116806693526224e-15,  1.7725601330565264e-15,  -3.4254856196772191e-16,
    -2.8276239805165835e-16, 3.4612228676974611e-17,  4.46562142029676e-17,    -4.8305044859441821e-18,
    -7.233180487874754e-18,  9.9214754121736986e-19,  1.1936508908459821e-18};
constexpr double kI1Small[] = {
    0.12629359322181683,    -0.17641651835783406,    0.1026436586898471,     -0.052945981208094991,
    0.024726449030626517,   -0.010564084894626198,   0.0041564229443128882,  -0.0015135724506312531,
    0.00051228595616857577, -0.00016176081582589675, 4.7815651075500542e-5,  -1.3273163656039436e-5,
    3.4702513081376785e-6,  -8.5687202646954547e-7,  2.0032947535521353e-7,  -4.4450591287963281e-8,
    9.3815373864957718e-9,  -1.8872497517228293e-9,  3.625590281552117e-10,  -6.6634897235020277e-11,
    1.1736186298890902e-11, -1.9839743977649437e-12, 3.2237933659455747e-13, -5.0421855047279117e-14,
    7.6006842947354069e-15, -1.1055969477353863e-15, 1.5536319577362005e-16, -2.1114212143581661e-17,
    2.7779141127610464e-18, -3.5415817725421362e-19};
constexpr double kI1Large[] = {
    0.38928811750914006,     -0.0097610974913614684,  -0.00011058893876262372, -3.8825648088776904e-6,
    -2.5122362378702089e-7,  -2.6314688468895195e-8,  -3.835380385964237e-9,   -5.5897434621965838e-10,
    -1.8974958123505412e-11, 3.2526035830154882e-11,  1.4125807436613781e-11,  2.0356285441470895e-12,
    -7.1985517762459085e-13, -4.0835511110921973e-13, -2.1015418427726643e-14, 4.2724400167119514e-14,
    1.0420276984128803e-14,  -3.8144030724370078e-15, -1.8803547755107824e-15, 3.3082023109209283e-16,
    2.9626289976459501e-16,  -3.209525921993424e-17,  -4.6503053684893583e-17, 4.4143483230717079e-18,
    7.5172963108421048e-18,  -9.3141788673268834e-19, -1.242193275194891e-18};

double i0e(double x) {
  const double size = std::abs(x);
  return size <= 8 ? chebyshev(kI0Small, size / 4 - 1) : chebyshev(kI0Large, 16 / size - 1) / std::sqrt(size);
}

double i1e(double x) {
  const double size = std::abs(x);
  return size <= 8 ? x * chebyshev(kI1Small, size / 4 - 1)
                   : std::copysign(chebyshev(kI1Large, 16 / size - 1) / std::sqrt(size), x);
}

/// scaled * exp(|x|), whose exponential alone may overflow.
double unscaled(double scaled, double x) {
  const double root = std::exp(0.5 * std::abs(x));
  return std::isinf(x)       ? std::copysign(kInfinity, scaled)
         : std::abs(x) < 700 ? scaled * std::exp(std::abs(x))
                             : scaled * root * root;
}

double i0(double x) { return unscaled(i0e(x), x); }
double i1(double x) { return unscaled(i1e(x), x); }

template <double (*function)(double), class T>
void special(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  const auto loop = [](const Row& row) {
    const T* from = static_cast<const T*>(row.in[0]);
    T* to = static_cast<T*>(row.out);
    for (int64_t i = 0; i < row.n; ++i)
      to[i] = static_cast<T>(static_cast<Compute<T>>(function(static_cast<double>(from[i]))));
  };
  run_unary(loop, x, out);
}

template <double (*function)(double)>
void add_special(const char* name) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &special<function, T>); });
}

}  // namespace

void register_special() {
  add_special<erfinv>("erfinv");
  add_special<i0>("i0");
  add_special<i0e>("i0e");
  add_special<i1>("i1");
  add_special<i1e>("i1e");
}

}  // namespace shard::cpu
