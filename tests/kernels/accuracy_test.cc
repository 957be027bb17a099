// Activation functions and their gradients against references in long double, in units of the last place (ulp).
#include <functional>
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"

namespace shard::testing::accuracy_test {
namespace {

using Real = long double;
using Function = std::function<Real(Real)>;
using WithFlag = void(const OpContext&, const DenseTensor&, bool, DenseTensor&);

Real sigmoid_ref(Real x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
Real silu_ref(Real x) { return x * sigmoid_ref(x); }
Real below_ref(Real x) { return std::erfc(-x / std::sqrt(Real(2))) / 2; }
Real gelu_ref(Real x) { return x * below_ref(x); }
Real twice_u_ref(Real x) { return std::sqrt(8 / std::acos(Real(-1))) * (x + 0.044715L * x * x * x); }
Real gelu_tanh_ref(Real x) { return x * sigmoid_ref(twice_u_ref(x)); }

/// The distance of numbers of `dtype` near `x`.
Real ulp_at(DType dtype, Real x) {
  int digits = 53, lowest = -1022;
  if (dtype == DType::float32) digits = 24, lowest = -126;
  if (dtype == DType::bfloat16) digits = 8, lowest = -126;
  if (dtype == DType::float16) digits = 11, lowest = -14;
  const int exponent = x == 0 ? lowest : std::max(static_cast<int>(std::floor(std::log2(std::abs(x)))), lowest);
  return std::ldexp(Real(1), exponent - digits + 1);
}

std::vector<double> points(DType dtype, double low, double high, int count) {
  std::vector<double> all;
  for (int i = 0; i < count; ++i) all.push_back(low + (high - low) * i / (count - 1));
  return values(tensor(all, {count}, dtype));
}

/// The largest error of `got` in ulps of the reference, or of `scale` where that is larger.
Real worst(const DenseTensor& got, const std::vector<double>& at, const Function& reference, const Function& scale) {
  Real most = 0;
  const std::vector<double> results = values(got);
  for (size_t i = 0; i < at.size(); ++i) {
    const Real x = static_cast<Real>(at[i]), expected = reference(x);
    const Real unit = ulp_at(got.dtype(), std::max(std::abs(expected), std::abs(scale(x))));
    const Real error = std::abs(static_cast<Real>(results[i]) - expected) / unit;
    if (!(error <= most)) most = error;
  }
  return most;
}

struct Range {
  DType dtype;
  double low, high;
  Real ulps;
};
/// To where each dtype has reached 0. 16 bits are rounded once from float.
constexpr Range kRanges[] = {{DType::float32, -120, 90, 6},
                             {DType::bfloat16, -120, 90, 0.51L},
                             {DType::float16, -25, 90, 0.51L},
                             {DType::float64, -707, 700, 5}};

Real none(Real) { return 0; }

template <class Call>
void check(const char* name, Range range, const Function& reference, const Call& run, const Function& scale = none) {
  // All of the range, and finely where the function bends.
  for (const double part : {1.0, 0.1, 0.02}) {
    const std::vector<double> at = points(range.dtype, range.low * part, std::min(range.high, 90.0) * part, 6001);
    const DenseTensor x = tensor(at, {6001}, range.dtype);
    DenseTensor out = uninitialized({6001}, range.dtype);
    run(x, out);
    INFO(name << " of " << to_string(range.dtype) << " from " << range.low * part);
    CHECK(worst(out, at, reference, scale) <= range.ulps);
  }
}

TEST_CASE("activations are within a few ulp of long double, far tails too") {
  for (const Range& range : kRanges) {
    const DType dtype = range.dtype;
    check("sigmoid", range, sigmoid_ref,
          [&](const DenseTensor& x, DenseTensor& out) { call<Unary>("sigmoid", dtype, x, out); });
    check("silu", range, silu_ref, [&](const DenseTensor& x, DenseTensor& out) { call<Unary>("silu", dtype, x, out); });
    check(
        "tanh", range, [](Real x) { return std::tanh(x); },
        [&](const DenseTensor& x, DenseTensor& out) { call<Unary>("tanh", dtype, x, out); });
    Range bell = range;
    bell.low = dtype == DType::float64 ? -37 : -16;
    check("gelu", bell, gelu_ref,
          [&](const DenseTensor& x, DenseTensor& out) { call<WithFlag>("gelu", dtype, x, false, out); });
    bell.low = dtype == DType::float64 ? -21 : -16;
    check("gelu, approximate", bell, gelu_tanh_ref,
          [&](const DenseTensor& x, DenseTensor& out) { call<WithFlag>("gelu", dtype, x, true, out); });
  }
}

TEST_CASE("gradients of activations are within a few ulp of their larger term") {
  using Grad = void(const OpContext&, const DenseTensor&, const DenseTensor&, bool, DenseTensor&);
  using SiluGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, DenseTensor&);
  const auto density = [](Real x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(Real(-1))); };
  const auto slope = [](Real x) { return std::sqrt(8 / std::acos(Real(-1))) * (1 + 3 * 0.044715L * x * x); };
  const auto turn = [&](Real x) { return x * sigmoid_ref(twice_u_ref(x)) * sigmoid_ref(-twice_u_ref(x)) * slope(x); };
  for (Range range : kRanges) {
    const DType dtype = range.dtype;
    if (size_of(dtype) == 2) range.ulps = 1;  // near a zero of the gradient its terms are larger than it
    else range.ulps = 8;
    const auto ones = [&](const DenseTensor& x) {
      return tensor(std::vector<double>(static_cast<size_t>(x.numel()), 1), x.dims(), dtype);
    };
    if (size_of(dtype) != 2) {  // of 16 bits the output that the gradient reads is rounded
      check(
          "silu_grad", range, [](Real x) { return sigmoid_ref(x) * (1 + x * sigmoid_ref(-x)); },
          [&](const DenseTensor& x, DenseTensor& out) {
            DenseTensor forward = uninitialized(x.dims(), dtype);
            call<Unary>("silu", dtype, x, forward);
            call<SiluGrad>("silu_grad", dtype, x, forward, ones(x), out);
          },
          silu_ref);
    }
    Range bell = range;
    bell.low = dtype == DType::float64 ? -37 : -16;
    check(
        "gelu_grad", bell, [&](Real x) { return below_ref(x) + x * density(x); },
        [&](const DenseTensor& x, DenseTensor& out) { call<Grad>("gelu_grad", dtype, x, ones(x), false, out); },
        [&](Real x) { return x * density(x); });
    bell.low = dtype == DType::float64 ? -21 : -16;
    check(
        "gelu_grad, approximate", bell, [&](Real x) { return sigmoid_ref(twice_u_ref(x)) + turn(x); },
        [&](const DenseTensor& x, DenseTensor& out) { call<Grad>("gelu_grad", dtype, x, ones(x), true, out); }, turn);
  }
}

TEST_CASE("swiglu gates as silu does, far tails too") {
  for (const Range& range : kRanges) {
    if (range.dtype == DType::float64) continue;
    check("swiglu", range, silu_ref, [&](const DenseTensor& x, DenseTensor& out) {
      call<Binary>("swiglu", range.dtype, x,
                   tensor(std::vector<double>(static_cast<size_t>(x.numel()), 1), x.dims(), range.dtype), out);
    });
  }
}

TEST_CASE("activations have their limits at infinities") {
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = tensor({-INFINITY, INFINITY, NAN, -0.0}, {4}, dtype);
    DenseTensor out = uninitialized({4}, dtype);
    const auto check_limits = [&] {
      CHECK(values(out)[0] == 0);
      CHECK(values(out)[1] == INFINITY);
      CHECK(std::isnan(values(out)[2]));
      CHECK((values(out)[3] == 0 && std::signbit(values(out)[3])));
    };
    call<Unary>("silu", dtype, x, out);
    check_limits();
    for (const bool approximate : {false, true}) {
      call<WithFlag>("gelu", dtype, x, approximate, out);
      check_limits();
    }
  }
}

}  // namespace
}  // namespace shard::testing::accuracy_test
