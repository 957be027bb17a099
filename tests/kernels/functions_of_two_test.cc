// Functions of two tensors and questions about their elements: remainders, comparisons with a tolerance, shifts.
#include <limits>
#include <numbers>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"

namespace shard::testing::functions_of_two_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Values = std::vector<double>;

Tensor of(const Values& values, DType dtype = DType::float64) {
  return cast(Tensor::from_data(values, {static_cast<int64_t>(values.size())}), dtype);
}
Values values_of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

/// Equal bits, of any NaN.
void check_same(const Values& actual, const Values& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("element " << i << " is " << actual[i] << ", expected " << expected[i]);
    if (std::isnan(expected[i])) CHECK(std::isnan(actual[i]));
    else CHECK((actual[i] == expected[i] && std::signbit(actual[i]) == std::signbit(expected[i])));
  }
}
void check_same(const Tensor& got, const Values& expected) { check_same(values_of(got), expected); }

template <class Call>
ErrorCode code_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) { return error.code(); }
  return ErrorCode::internal;
}

TEST_CASE("remainders have the sign of the divisor, and quotients are rounded down") {
  const Values x = {7, -7, 7, -7, 6, -6, 0, 5.5, -5.5}, y = {3, 3, -3, -3, 3, -3, 4, 2, 2};
  const Values remainders = {1, 2, -2, -1, 0, -0.0, 0, 1.5, 0.5}, quotients = {2, -3, -3, 2, 2, 2, 0, 2, -3};
  for (const DType dtype : kFloatDTypes) {
    check_same(remainder(of(x, dtype), of(y, dtype)), remainders);
    check_same(floor_divide(of(x, dtype), of(y, dtype)), quotients);
  }
  for (const DType dtype : {DType::int32, DType::int64}) {
    const Tensor a = of({7, -7, 7, -7, 6, -6, 0}, dtype), b = of({3, 3, -3, -3, 3, -3, 4}, dtype);
    check_same(remainder(a, b), {1, 2, -2, -1, 0, 0, 0});
    check_same(floor_divide(a, b), {2, -3, -3, 2, 2, 2, 0});
  }
  const Tensor lowest = full({1}, std::numeric_limits<int64_t>::lowest(), DType::int64);
  check_same(remainder(lowest, of({-1}, DType::int64)), {0});
  check_same(remainder(of({200}, DType::uint8), of({7}, DType::uint8)), {4});
  check_same(remainder(of({1, kInf, 5, kNaN}), of({0, 2, kInf, 1})), {kNaN, kNaN, 5, kNaN});
  check_same(floor_divide(of({1, -1, 0}), of({0, 0, 0})), {kInf, -kInf, kNaN});
  check_same(floor_divide(of({5, -5}), of({kInf, kInf})), {0, -1});
  check_same(floor_divide(of({1}), of({0.1})), {9});  // 0.1 as a number is a little more than a tenth
}

TEST_CASE("remainder and floor_divide refuse an integer divisor of 0 before anything is written") {
  Tensor x = of({4, 5}, DType::int32);
  const Tensor y = of({2, 0}, DType::int32);
  CHECK(code_of([&] { remainder_(x, y); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { floor_divide_(x, y); }) == ErrorCode::invalid_argument);
  check_same(x, {4, 5});
}

TEST_CASE("fmax and fmin prefer a number to NaN") {
  for (const DType dtype : kFloatDTypes) {
    check_same(fmax(of({1, kNaN, 2, kNaN, -kInf}, dtype), of({3, 1, kNaN, kNaN, kNaN}, dtype)), {3, 1, 2, kNaN, -kInf});
    check_same(fmin(of({1, kNaN, 2, kNaN, kInf}, dtype), of({3, 1, kNaN, kNaN, kNaN}, dtype)), {1, 1, 2, kNaN, kInf});
  }
  check_same(fmax(of({-1, 5}, DType::int32), of({2, 3}, DType::int32)), {2, 5});
}

TEST_CASE("atan2 has the quadrant of its point") {
  const Values y = {0.0, -0.0, 1, -1, 1, -1, 3, 0.0, -0.0, kInf, kInf, -2},
               x = {1, 1, 1, 1, -1, -1, 0.0, -1, -1, kInf, -kInf, -5};
  Values expected;
  for (size_t i = 0; i < x.size(); ++i) expected.push_back(std::atan2(y[i], x[i]));
  for (const DType dtype : kFloatDTypes) {
    const Values got = values_of(atan2(of(y, dtype), of(x, dtype)));
    for (size_t i = 0; i < x.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(2 * epsilon_of(dtype)));
  }
}

/// The derivative of an op of one tensor at each element of x.
template <class F>
Values slope_of(const F& function, const Tensor& given) {
  Tensor x = assign(given);
  x.set_requires_grad(true);
  const Tensor out = function(x);
  return values_of(grad({out}, {x}, {full_like(out.detach(), 1)})[0]);
}

TEST_CASE("gradients are not lost where their parts are large or rounded") {
  const Tensor y = of({300}, DType::float16);
  const auto of_y = [&](const Tensor& t) { return atan2(t, y); };
  const auto of_x = [&](const Tensor& t) { return atan2(y, t); };
  CHECK(slope_of(of_y, y)[0] == Approx(1.0 / 600).epsilon(2e-3));
  CHECK(slope_of(of_x, y)[0] == Approx(-1.0 / 600).epsilon(2e-3));
  // i1e(16) - i0e(16) is small beside both
  const auto scaled = [](const Tensor& t) { return i0e(t); };
  const auto plain = [](const Tensor& t) { return i1(t); };
  CHECK(slope_of(scaled, of({16}, DType::float16))[0] == Approx(-0.003194512604700661).epsilon(2e-3));
  const Values slopes = slope_of(plain, of({90, -90, kInf}, DType::float32));
  CHECK(slopes[0] == Approx(5.082453825339131e37).epsilon(1e-4));
  CHECK(slopes[1] == slopes[0]);
  CHECK(slopes[2] == kInf);
}

TEST_CASE("functions that grow slower than their parts do not overflow before their results") {
  for (const DType dtype : {DType::float32, DType::float64}) {
    const bool wide = dtype == DType::float64;
    const double large = wide ? 1.5e307 : 2e38, edge = wide ? 710.25 : 89.25;
    const double size = std::exp(edge - 1) * (std::numbers::e / 2), tolerance = 1000 * epsilon_of(dtype);
    CHECK(values_of(log1p(of({large}, dtype)))[0] == Approx(std::log(large)).epsilon(tolerance));
    const Tensor x = of({edge, -edge}, dtype);
    const Values odd = {size, -size}, even = {size, size};
    const Values sinh_of = values_of(sinh(x)), cosh_of = values_of(cosh(x));
    const Values sinh_slope = slope_of([](const Tensor& t) { return sinh(t); }, x);
    const Values cosh_slope = slope_of([](const Tensor& t) { return cosh(t); }, x);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(sinh_of[i] == Approx(odd[i]).epsilon(tolerance));
      CHECK(cosh_of[i] == Approx(even[i]).epsilon(tolerance));
      CHECK(sinh_slope[i] == Approx(even[i]).epsilon(tolerance));
      CHECK(cosh_slope[i] == Approx(odd[i]).epsilon(tolerance));
    }
  }
}

TEST_CASE("logit with an eps above a half ends at eps") {
  check_same(logit(of({0.0, 0.5, 1}), 0.75f), values_of(logit(of({0.75, 0.75, 0.75}), 0.25f)));
}

TEST_CASE("the gradient of logit is 0 where x is clamped, and NaN where logit is") {
  const Tensor x = of({-1, 0.5, 2});
  check_same(slope_of([](const Tensor& t) { return logit(t, 0.125f); }, x), {0, 4, 0});
  check_same(slope_of([](const Tensor& t) { return logit(t, 0); }, x), {kNaN, 4, kNaN});
}

TEST_CASE("copysign, heaviside and lerp") {
  for (const DType dtype : kFloatDTypes) {
    check_same(copysign(of({1, -2, 0.0, kInf}, dtype), of({-0.0, 3, -1, -1}, dtype)), {-1, 2, -0.0, -kInf});
    check_same(heaviside(of({-1, 0.0, -0.0, 2, kNaN}, dtype), of({5, 0.5, 0.25, 5, 5}, dtype)), {0, 0.5, 0.25, 1, 0});
    check_same(lerp(of({1, 2}, dtype), of({3, 10}, dtype), of({0.25}, dtype)), {1.5, 4});
  }
  check_same(heaviside(of({-1, 0, 2}, DType::int32), of({7, 7, 7}, DType::int32)), {0, 7, 1});
}

TEST_CASE("questions about NaN and infinities") {
  for (const DType dtype : kFloatDTypes) {
    const Tensor x = of({1, kNaN, kInf, -kInf, 0}, dtype);
    CHECK(isnan(x).dtype() == DType::boolean);
    check_same(isnan(x), {0, 1, 0, 0, 0});
    check_same(isinf(x), {0, 0, 1, 1, 0});
    check_same(isfinite(x), {1, 0, 0, 0, 1});
  }
  for (const DType dtype : {DType::int32, DType::uint8, DType::boolean}) {
    check_same(isnan(of({0, 1}, dtype)), {0, 0});
    check_same(isinf(of({0, 1}, dtype)), {0, 0});
    check_same(isfinite(of({0, 1}, dtype)), {1, 1});
  }
}

TEST_CASE("isclose compares with a relative and an absolute tolerance, and allclose asks for all elements") {
  const Tensor x = of({1, 1.125, 0, kInf, kInf, kNaN}), y = of({1.0625, 1, 0.5, kInf, 1, kNaN});
  check_same(isclose(x, y, 0.0625, 0.0), {1, 0, 0, 1, 0, 0});
  check_same(isclose(x, y, 0.0, 0.5), {1, 1, 1, 1, 0, 0});
  check_same(isclose(x, y, 0.0, 0.5, true), {1, 1, 1, 1, 0, 1});
  check_same(isclose(of({1}), of({kInf}), 1.0, 1.0), {0});
  const int64_t large = int64_t{1} << 62;
  CHECK_FALSE(allclose(full({1}, large, DType::int64), full({1}, -large, DType::int64)).to_vector<bool>()[0]);
  check_same(allclose(x, y, 0.0, 0.5, true), {0});
  check_same(allclose(of({1, 2}), of({1, 2})), {1});
  check_same(allclose(zeros({0}), zeros({0})), {1});
  CHECK(allclose(of({1, 2}), of({1, 2})).dims() == Dims{});
  std::vector<float> many(100000, 1);
  const Tensor ones = Tensor::from_data(many, {100000});
  CHECK(allclose(ones, assign(ones)).to_vector<bool>()[0]);
  many.back() = 2;
  CHECK_FALSE(allclose(ones, Tensor::from_data(many, {100000})).to_vector<bool>()[0]);
  CHECK(code_of([] { allclose(zeros({2}), zeros({1})); }) == ErrorCode::shape_mismatch);
}

TEST_CASE("shifts are by bits of the dtype, and what is shifted too far is gone") {
  const Tensor x = of({1, -8, 5, -1, 3}, DType::int32), y = of({4, 1, 40, 32, -1}, DType::int32);
  check_same(bitwise_left_shift(x, y), {16, -16, 0, 0, 0});
  check_same(bitwise_right_shift(x, y), {0, -4, 0, -1, 0});
  check_same(bitwise_right_shift(x, y, false), {0, 2147483644, 0, 0, 0});
  check_same(bitwise_left_shift(of({200}, DType::uint8), of({1}, DType::uint8)), {144});
  check_same(bitwise_right_shift(of({200}, DType::uint8), of({3}, DType::uint8)), {25});
}

TEST_CASE("numbers that a function cannot have are errors") {
  CHECK(code_of([] { celu(zeros({1}), 0); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { softshrink(zeros({1}), -1); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { polygamma(zeros({1}), -1); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { increment(zeros({2})); }) == ErrorCode::invalid_argument);
  CHECK(code_of([] { increment(zeros({1}, DType::int32), 0.5f); }) == ErrorCode::dtype_mismatch);
  CHECK(code_of([] { lerp(zeros({2}), zeros({2}), zeros({2}, DType::float64)); }) == ErrorCode::dtype_mismatch);
  CHECK(code_of([] { erf(zeros({2}, DType::int32)); }) == ErrorCode::no_kernel);
  check_same(increment(of({3}), 2), {5});
  check_same(increment(of({3}, DType::uint8), -1), {2});
}

}  // namespace
}  // namespace shard::testing::functions_of_two_test
