// Running products, extremes and sums of exponentials, and other ops of reduce.yaml: values by hand and
// from NumPy and SciPy, gradients beside zeros, and errors.
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::testing::running_test {
namespace {

using Values = std::vector<double>;
using test::error_of;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor of(const Values& numbers, const Dims& dims, DType dtype = DType::float64) {
  return Tensor(tensor(numbers, dims, dtype));
}
Tensor of(const Values& numbers) { return of(numbers, {static_cast<int64_t>(numbers.size())}); }

void check(const Tensor& got, const Dims& dims, const Values& expected, double ulps = 0) {
  CHECK(got.dims() == dims);
  check_close(got.get().value, expected, ulps);
}

template <class F>
Values slope(const Values& at, const F& function, const Values& weights) {
  const Tensor x = of(at).set_requires_grad(true);
  function(x).backward(of(weights));
  return x.grad().to_vector<double>();
}

}  // namespace

TEST_CASE("cumprod multiplies along a dim, of every dtype") {
  for (const DType dtype : kNumberDTypes) {
    const Tensor x = of({1, 2, 3, 2, 0, 5}, {2, 3}, dtype);
    check(cumprod(x, 1), {2, 3}, {1, 2, 6, 2, 0, 0});
    check(cumprod(x, -2), {2, 3}, {1, 2, 3, 2, 0, 15});
  }
  check(cumprod(of({3}, {}), 0), {}, {3});
  check(cumprod(of({}, {0, 2}), 1), {0, 2}, {});
  error_of([] { cumprod(of({1}), 1); }, ErrorCode::out_of_range);
}

TEST_CASE("the gradient of cumprod is right beside zeros") {
  const auto product = [](const Tensor& x) { return cumprod(x, 0); };
  // Of a, ab, abc: 1 + b + bc, a + ac and ab, times the weights.
  CHECK(slope({2, 3, 4}, product, {1, 10, 100}) == Values{1 + 30 + 1200, 20 + 800, 600});
  CHECK(slope({2, 0, 4}, product, {1, 10, 100}) == Values{1, 20 + 800, 0});
  CHECK(slope({0, 0, 4}, product, {1, 10, 100}) == Values{1, 0, 0});
  CHECK(slope({2, 3, 0}, product, {1, 10, 100}) == Values{1 + 30, 20, 600});
}

TEST_CASE("cummax and cummin return the last index of equal elements, and NaN wins") {
  const Tensor x = of({1, 3, 2, 3, kNaN, 5, kNaN});
  const auto [largest, at] = cummax(x);
  check(largest, {7}, {1, 3, 3, 3, kNaN, kNaN, kNaN});
  check(at, {7}, {0, 1, 1, 3, 4, 4, 6});
  const auto [smallest, where] = cummin(of({3, 1, 4, 1, 2, 0}, {2, 3}), 0, DType::int32);
  check(smallest, {2, 3}, {3, 1, 4, 1, 1, 0});
  CHECK(where.dtype() == DType::int32);
  check(where, {2, 3}, {0, 0, 0, 1, 0, 1});
  CHECK(slope({1, 3, 2, 3}, [](const Tensor& y) { return std::get<0>(cummax(y)); }, {1, 10, 100, 1000}) ==
        Values{1, 110, 0, 1000});
  error_of([&] { cummax(x, 0, DType::float32); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("the gradient of logcumsumexp keeps NaN") {
  Tensor x = Tensor(tensor({1, 2}, {2}, DType::float64));
  x.set_requires_grad(true);
  logcumsumexp(x).backward(Tensor(tensor({kNaN, 1}, {2}, DType::float64)));
  CHECK(std::isnan(values(x.grad().get().value)[0]));
}

TEST_CASE("logcumsumexp agrees with SciPy and does not overflow") {
  check(logcumsumexp(of({1, -2, 3, 0.5})), {4}, {1, 1.048587351573742, 3.1328452337275756, 3.2022534476793516}, 4);
  check(logcumsumexp(of({0.5, 3, -2, 1}), 0, false, false, true), {4},
        {3.2022534476793516, 3.1328452337275756, 1.048587351573742, 1}, 4);
  check(logcumsumexp(of({1, -2, 3, 0.5}), 0, false, true), {4}, {-kInfinity, 1, 1.048587351573742, 3.1328452337275756},
        4);
  check(logcumsumexp(of({1000, 1000, -kInfinity, kNaN})), {4}, {1000, 1000 + std::log(2), 1000 + std::log(2), kNaN}, 4);
  check(logcumsumexp(of({-kInfinity, -kInfinity, 2})), {3}, {-kInfinity, -kInfinity, 2});
  check(logcumsumexp(of({0, 0, 0, 0}, {2, 2}, DType::float16), 0, true), {4},
        {0, std::log(2), std::log(3), std::log(4)}, 1);
  // The shares of the elements in the sums: 1 and 1/2 for equal ones, also where exp would overflow.
  const Values shares = slope({1000, 1000}, [](const Tensor& x) { return logcumsumexp(x); }, {1, -1});
  CHECK(shares[0] == Approx(0.5).epsilon(1e-12));
  CHECK(shares[1] == Approx(-0.5).epsilon(1e-12));
  error_of([] { logcumsumexp(of({1}, {1}, DType::int32)); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("logsumexp agrees with SciPy and does not overflow") {
  const Tensor x = of({1, -2, 3, 0.5}, {2, 2});
  check(logsumexp(x, {}, false, false), {}, {3.2022534476793516}, 4);
  check(logsumexp(x, {0}, true, true), {1, 1}, {3.2022534476793516}, 4);
  check(logsumexp(x, {-1}, false, false), {2}, {1.048587351573742, 3.0788897342925496}, 4);
  check(logsumexp(of({1000, 1000}), {0}, false, false), {}, {1000 + std::log(2)}, 4);
  check(logsumexp(of({-kInfinity, -kInfinity}), {0}, false, false), {}, {-kInfinity});
  check(logsumexp(of({1, kInfinity}), {0}, false, false), {}, {kInfinity});
  check(logsumexp(of({3}, {}), {}, false, false), {}, {3});
  check(logsumexp(of(Values(300, 1), {300}, DType::float16), {0}, false, false), {}, {1 + std::log(300)}, 1);
  error_of([] { logsumexp(of({}, {0}), {0}, false, false); }, ErrorCode::invalid_argument);
}

TEST_CASE("norms of every order agree with NumPy") {
  const Tensor x = of({1, -2, 3, 0.5});
  check(p_norm(x, 0), {}, {4});
  check(p_norm(x, 1), {}, {6.5});
  check(p_norm(x, 2), {}, {std::sqrt(14.25)}, 2);
  check(p_norm(x, 3), {}, {3.305744509228972}, 4);
  check(p_norm(x, 0.5f), {}, {23.55521153060658}, 8);
  check(p_norm(x, static_cast<float>(kInfinity)), {}, {3});
  check(p_norm(x, static_cast<float>(-kInfinity)), {}, {0.5});
  check(p_norm(reshape(x, {2, 2}), 1, 0, 0, true), {1, 2}, {4, 2.5});
  check(p_norm(reshape(x, {2, 2}), 1, 0, 0, true, true), {1, 1}, {6.5});
  check(l1_norm(reshape(x, {2, 2})), {}, {6.5});
}

TEST_CASE("the gradient of a norm of zeros is 0") {
  for (const float order : {1.5f, 2.0f, 3.0f}) {
    const Tensor x = of({0, 0}).set_requires_grad(true);
    p_norm(x, order).backward();
    CHECK(x.grad().to_vector<double>() == Values{0, 0});
  }
}

TEST_CASE("mean_all and reduce_as") {
  const Tensor x = of({1, 2, 3, 4, 5, 6}, {2, 3});
  check(mean_all(x), {}, {3.5});
  check(mean_all(of({}, {0})), {}, {kNaN});
  check(reduce_as(x, of({0, 0, 0})), {3}, {5, 7, 9});
  check(reduce_as(x, of({0, 0}, {2, 1})), {2, 1}, {6, 15});
  check(reduce_as(x, of({0}, {})), {}, {21});
  check(reduce_as(of({3, 4}, {2}, DType::int32), of({0, 0})), {2}, {3, 4});
  CHECK(reduce_as(of({3, 4}, {2}, DType::int32), of({0, 0})).dtype() == DType::int64);
  error_of([&] { reduce_as(x, of({0, 0})); }, ErrorCode::shape_mismatch);
}

}  // namespace shard::testing::running_test
