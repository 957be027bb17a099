// The functions that random numbers of float64 are made by, beside those of the C library.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace random_double_test {
namespace {

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/random_double.inc"
#undef SHARD_FORMULA_INLINE

/// The distance of two numbers, in units of the last place of the second.
double ulps(double actual, double expected) {
  if (actual == expected) return 0;
  return std::abs(actual - expected) / (std::nextafter(std::abs(expected), INFINITY) - std::abs(expected));
}

/// Calls use(x) with numbers that are spread evenly, and with both ends.
template <class Use>
void spread(double from, double to, const Use& use) {
  constexpr int kNumbers = 100000;
  for (int i = 0; i < kNumbers; ++i) use(from + (to - from) * (i + 0.37) / kNumbers);
  use(from);
  use(to);
}

}  // namespace

TEST_CASE("random_double: logarithms") {
  double worst = 0;
  spread(0x1p-53, 1, [&](double x) { worst = std::max(worst, ulps(log_of(x), std::log(x))); });
  spread(-740, 700, [&](double e) { worst = std::max(worst, ulps(log_of(std::exp(e)), std::log(std::exp(e)))); });
  CHECK(worst <= 1);
  CHECK(log_of(0) == -INFINITY);
  CHECK(log_of(INFINITY) == INFINITY);
  CHECK(std::isnan(log_of(NAN)));
  CHECK(log_of_fraction(1) == 0);

  worst = 0;
  spread(-0.999, 2, [&](double x) { worst = std::max(worst, ulps(log1p_of(x), std::log1p(x))); });
  spread(-700, -1, [&](double e) { worst = std::max(worst, ulps(log1p_of(-std::exp(e)), std::log1p(-std::exp(e)))); });
  CHECK(worst <= 4);
}

TEST_CASE("random_double: exponentials") {
  double worst = 0;
  spread(-708, 709.7, [&](double x) { worst = std::max(worst, ulps(exp_of(x), std::exp(x))); });
  spread(-1, 1, [&](double x) { worst = std::max(worst, ulps(exp_of(x), std::exp(x))); });
  CHECK(worst <= 1);
  spread(-760, -708,
         [&](double x) { CHECK(std::abs(exp_of(x) - std::exp(x)) <= 2 * std::numeric_limits<double>::denorm_min()); });
  CHECK(exp_of(0) == 1);
  CHECK(exp_of(-INFINITY) == 0);
  CHECK(exp_of(INFINITY) == INFINITY);
  CHECK(exp_of(709.79) == INFINITY);
  CHECK(std::isnan(exp_of(NAN)));
}

TEST_CASE("random_double: cosines of turns") {
  double worst = 0;
  const long double two_pi = 6.283185307179586476925286766559L;
  spread(0, 1 - 0x1p-53, [&](double x) {
    worst = std::max(worst, std::abs(cos_of_turns(x) - static_cast<double>(std::cos(two_pi * x))));
  });
  CHECK(worst <= 0x1p-52);
  CHECK(cos_of_turns(0) == 1);
  CHECK(cos_of_turns(0.25) == 0);
  CHECK(cos_of_turns(0.5) == -1);
  CHECK(cos_of_turns(0.75) == 0);
}

TEST_CASE("random_double: factorials") {
  double sum = 0;  // of logarithms
  for (int k = 0; k < 3000; ++k) {
    if (k > 1) sum += std::log(static_cast<double>(k));
    INFO(k);
    CHECK(std::abs(log_factorial(k) - sum) <= 1e-13 * sum);
  }
  CHECK(std::abs(log_factorial(1e15) - 33538776394910703.0) <= 16);
}

}  // namespace random_double_test
