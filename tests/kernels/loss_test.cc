// Kernels of losses, against numbers of PyTorch 2.15 (float64) and by hand.
#include "kernels/kernel_testing.h"

namespace shard::testing::loss_test {
namespace {

using Loss = void(const OpContext&, const DenseTensor&, const DenseTensor&, DenseTensor&);
using LossGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, DenseTensor&);
using LogLoss = void(const OpContext&, const DenseTensor&, const DenseTensor&, float, DenseTensor&);
using LogLossGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, float,
                         DenseTensor&);
using Huber = void(const OpContext&, const DenseTensor&, const DenseTensor&, float, DenseTensor&, DenseTensor&);
using HuberGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, float,
                       DenseTensor&, DenseTensor&);
using Nll = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, int64_t,
                 const std::string&, DenseTensor&, DenseTensor&);
using NllGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                     const DenseTensor&, int64_t, const std::string&, DenseTensor&);

constexpr DType kWide = DType::float64;
const double kNan = std::numeric_limits<double>::quiet_NaN();

void check_digits(const DenseTensor& got, const std::vector<double>& expected) {
  const std::vector<double> actual = values(got);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) CHECK(actual[i] == Approx(expected[i]).epsilon(1e-8).margin(1e-9));
}

TEST_CASE("bce_loss limits logarithms to -100") {
  const DenseTensor x = tensor({.1, .5, .9, .25}, {4}, kWide), label = tensor({0, 1, 1, .5}, {4}, kWide),
                    grad = tensor({-2, 1, -1, 2}, {4}, kWide);
  DenseTensor out = uninitialized({4}, kWide);
  call<Loss>("bce_loss", kWide, x, label, out);
  check_digits(out, {0.105360516, 0.693147181, 0.105360516, 0.836988217});
  call<LossGrad>("bce_loss_grad", kWide, x, label, grad, out);
  check_digits(out, {-2.222222222, -2, 1.111111111, -2.666666667});
  for (const DType dtype : kFloatDTypes) {
    DenseTensor ends = uninitialized({5}, dtype);
    call<Loss>("bce_loss", dtype, tensor({0, 0, 1, 1, kNan}, {5}, dtype), tensor({0, 1, 0, 1, 0}, {5}, dtype), ends);
    check_close(ends, {0, 100, 100, 0, kNan}, 0);
    call<Loss>("bce_loss", dtype, uninitialized({0}, dtype), uninitialized({0}, dtype),
               ends = uninitialized({0}, dtype));
  }
}

TEST_CASE("log_loss adds epsilon to probabilities") {
  const DenseTensor x = tensor({.25, .5}, {2}, kWide), label = tensor({1, .25}, {2}, kWide),
                    grad = tensor({2, -1}, {2}, kWide);
  DenseTensor out = uninitialized({2}, kWide);
  call<LogLoss>("log_loss", kWide, x, label, 0.25f, out);
  check_digits(out, {std::log(2), -.25 * std::log(.75) - .75 * std::log(.75)});
  call<LogLossGrad>("log_loss_grad", kWide, x, label, grad, 0.25f, out);
  check_digits(out, {-4, -1 * (.75 / .75 - .25 / .75)});
}

TEST_CASE("huber_loss is quadratic up to delta and linear beyond") {
  const DenseTensor x = tensor({-3, 0, .5, 4}, {4}, kWide), label = tensor({0, .25, 1, 1}, {4}, kWide),
                    grad = tensor({-2, 1, -1, 2}, {4}, kWide);
  DenseTensor out = uninitialized({4}, kWide), residual = uninitialized({4}, kWide),
              of_label = uninitialized({4}, kWide);
  call<Huber>("huber_loss", kWide, x, label, 1.5f, out, residual);
  check_digits(out, {3.375, 0.03125, 0.125, 3.375});
  CHECK(values(residual) == std::vector<double>{3, .25, .5, -3});
  call<HuberGrad>("huber_loss_grad", kWide, x, label, grad, 1.5f, out, of_label);
  check_digits(out, {3, -0.25, 0.5, 3});
  check_digits(of_label, {-3, .25, -.5, -3});
}

TEST_CASE("nll_loss weighs classes ignores a label and reduces") {
  const DenseTensor input = tensor({-3.047095157, -1.297095157, -2.297095157, -0.547095157, -1.450132694, -2.450132694,
                                    -0.700132694, -1.700132694, -2.266999725, -0.516999725, -1.516999725, -2.516999725},
                                   {3, 4}, kWide);
  const DenseTensor label = tensor({1, 3, 2}, {3}, DType::int64), weight = tensor({1, 2, 3, .5}, {4}, kWide);
  DenseTensor out = uninitialized({3}, kWide), one = uninitialized({}, kWide), total = uninitialized({}, kWide),
              grad = uninitialized({3, 4}, kWide);
  call<Nll>("nll_loss", kWide, input, label, weight, int64_t{-100}, "none", out, total);
  check_digits(out, {2.594190313, 0.850066347, 4.550999176});
  CHECK(values(total) == std::vector<double>{0});
  call<NllGrad>("nll_loss_grad", kWide, input, label, weight, total, tensor({-2, 1, -1}, {3}, kWide), int64_t{-100},
                "none", grad);
  check_digits(grad, {0, 4, 0, 0, 0, 0, 0, -0.5, 0, 0, 3, 0});
  call<Nll>("nll_loss", kWide, input, label, weight, int64_t{3}, "mean", one, total);
  check_digits(one, {1.429037898});
  CHECK(values(total) == std::vector<double>{5});
  call<NllGrad>("nll_loss_grad", kWide, input, label, weight, total, tensor({-2}, {}, kWide), int64_t{3}, "mean", grad);
  check_digits(grad, {0, 0.8, 0, 0, 0, 0, 0, 0, 0, 0, 1.2, 0});
  call<Nll>("nll_loss", kWide, input, label, DenseTensor(), int64_t{3}, "sum", one, total);
  CHECK(values(total) == std::vector<double>{2});
  check_digits(one, {1.297095157 + 1.516999725});
}

TEST_CASE("nll_loss takes a class for each place of an image and refuses other ones") {
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor input = tensor({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2}, dtype);
    DenseTensor out = uninitialized({2, 2}, dtype);
    DenseTensor total = uninitialized({}, dtype == kWide ? kWide : DType::float32);
    call<Nll>("nll_loss", dtype, input, tensor({0, 1, 1, 0}, {2, 2}, DType::int32), DenseTensor(), int64_t{-100},
              "none", out, total);
    CHECK(values(out) == std::vector<double>{-1, -4, -7, -6});
    try {
      call<Nll>("nll_loss", dtype, input, tensor({0, 1, 2, 0}, {2, 2}, DType::int32), DenseTensor(), int64_t{-100},
                "none", out, total);
      FAIL("class 2 of 2 was accepted");
    } catch (const Error& error) { CHECK(error.code() == ErrorCode::out_of_range); }
  }
}

TEST_CASE("nll_loss of many labels adds all of them up and finds the first one that is wrong") {
  const int64_t count = 30000, classes = 3;
  std::vector<double> losses, labels, weights = {1, 2, 4};
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<double>(i % 5 == 4 ? 7 : i % classes));
    for (int64_t c = 0; c < classes; ++c) losses.push_back(static_cast<double>((i + c) % 16));
  }
  double sum = 0, weight_sum = 0;
  std::vector<double> slopes(losses.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == 7) continue;
    const auto at = static_cast<size_t>(labels[i]);
    sum -= weights[at] * losses[3 * i + at];
    weight_sum += weights[at];
    slopes[3 * i + at] = -2 * weights[at];
  }
  const DenseTensor input = tensor(losses, {count, classes}, kWide), weight = tensor(weights, {classes}, kWide);
  DenseTensor label = tensor(labels, {count}, DType::int64), out = uninitialized({}, kWide),
              total = uninitialized({}, kWide), grad = uninitialized({count, classes}, kWide);
  call<Nll>("nll_loss", kWide, input, label, weight, int64_t{7}, "sum", out, total);
  CHECK(values(out) == std::vector<double>{sum});
  CHECK(values(total) == std::vector<double>{weight_sum});
  call<NllGrad>("nll_loss_grad", kWide, input, label, weight, total, tensor({2}, {}, kWide), int64_t{7}, "sum", grad);
  CHECK(values(grad) == slopes);
  label.data<int64_t>()[20001] = label.data<int64_t>()[29999] = -1;
  CHECK_THROWS_WITH((call<Nll>("nll_loss", kWide, input, label, weight, int64_t{7}, "sum", out, total)),
                    Catch::Contains("label is -1 at element 20001"));
}

}  // namespace
}  // namespace shard::testing::loss_test
