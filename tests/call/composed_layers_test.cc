// Losses and layers that are compositions of other ops, against numbers of PyTorch 2.15 (float64) and by hand.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "shard/shard.h"

namespace composed_layers_test {

using namespace shard;

namespace {

Tensor of(const std::vector<double>& values, const Dims& dims) { return Tensor::from_data(values, dims); }

void check(const Tensor& got, const std::vector<double>& expected) {
  const std::vector<double> actual = got.to_vector<double>();
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("element " << i);
    CHECK(actual[i] == Approx(expected[i]).epsilon(1e-8).margin(1e-9));
  }
}

template <class Call>
ErrorCode code_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) { return error.code(); }
  FAIL("no error");
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE("sigmoid_cross_entropy_with_logits ignores labels and counts the others") {
  const Tensor x = of({-2, 0, 3, .5}, {4}), label = of({0, 1, 1, .5}, {4});
  check(sigmoid_cross_entropy_with_logits(x, label, {}), {0.126928011, 0.693147181, 0.048587352, 0.724076984});
  const Tensor some = of({0, 1, 7, .5}, {4});
  check(sigmoid_cross_entropy_with_logits(x, some, {}, true, 7),
        {0.126928011 / 3, 0.693147181 / 3, 0, 0.724076984 / 3});
  check(sigmoid_cross_entropy_with_logits(of({1000, -1000}, {2}), of({1, 0}, {2}), {}), {0, 0});
  check(sigmoid_cross_entropy_with_logits(of({0, 1}, {2}), of({7, 7}, {2}), {}, true, 7), {0, 0});
  // A weight of positive labels multiplies the logarithm.
  check(sigmoid_cross_entropy_with_logits(of({0}, {1}), of({1}, {1}), of({3}, {1})), {3 * std::log(2.0)});
  CHECK(code_of([&] { sigmoid_cross_entropy_with_logits(x, of({1}, {1}), {}); }) == ErrorCode::shape_mismatch);
}

TEST_CASE("losses of 16 bits do not cancel, and count in float32") {
  const auto number = [](const Tensor& x) { return cast(x, DType::float64).to_vector<double>()[0]; };
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Tensor x = full({1}, -10, dtype), no = full({1}, 0, dtype);
    CHECK(number(sigmoid_cross_entropy_with_logits(x, no, {})) == Approx(std::log1p(std::exp(-10.0))).epsilon(1e-2));
  }
  const int64_t n = 70000;  // float16 ends at 65504
  Tensor x = full({n, 1}, -1, DType::float16).set_requires_grad(true);
  std::get<0>(nll_loss(x, full({n}, 0, DType::int64), {})).backward();
  CHECK(number(x.grad()) == Approx(-1.0 / 70000).epsilon(1e-2));
  const Tensor many = full({n}, 0, DType::float16);
  CHECK(number(sigmoid_cross_entropy_with_logits(many, many, {}, true)) == Approx(std::log(2.0) / 70000).epsilon(1e-2));
  const Tensor rows = full({n, 1}, -1, DType::float16);
  CHECK(number(kldiv_loss(rows, full({n, 1}, 1, DType::float16), "batchmean")) == Approx(1));
}

TEST_CASE("kldiv_loss is 0 where the label is and has four reductions") {
  const std::vector<double> logarithms = {std::log(.2), std::log(.8), std::log(.5), std::log(.5)};
  const Tensor x = of(logarithms, {2, 2}), label = of({.3, .7, 0, 1}, {2, 2});
  const std::vector<double> each = {0.121639532, -0.093471975, 0, 0.693147181};
  const double total = each[0] + each[1] + each[2] + each[3];
  check(kldiv_loss(x, label, "none"), each);
  check(kldiv_loss(x, label, "sum"), {total});
  check(kldiv_loss(x, label), {total / 4});
  check(kldiv_loss(x, label, "batchmean"), {total / 2});
  check(kldiv_loss(x, scale(x, 2), "batchmean", true), {-0.27688149});
  CHECK(code_of([&] { kldiv_loss(x, label, "median"); }) == ErrorCode::invalid_argument);
}

TEST_CASE("a label of NaN gives a kldiv_loss of NaN, and one below 0 none") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = of({-1, -2, -3}, {3}), label = of({nan, -2, 0}, {3});
  const std::vector<double> each = kldiv_loss(x, label, "none").to_vector<double>();
  CHECK(std::isnan(each[0]));
  CHECK(each[1] == 0);
  CHECK(each[2] == 0);
}

TEST_CASE("fused layers are those that they are made of") {
  const Tensor x = of({1, -2, 3, 4}, {2, 2}), y = of({1, 0, 2, 1}, {2, 2}), bias = of({-20, 0.5}, {2});
  check(fused_gemm_epilogue(x, y, bias, false, false, "none"), {-23, -1.5, -9, 4.5});
  check(fused_gemm_epilogue(x, y, bias, false, false, "relu"), {0, 0, 0, 4.5});
  check(fused_gemm_epilogue(x, y, bias, true, true, "none"), {-19, 5.5, -22, 0.5});
  CHECK(code_of([&] { fused_gemm_epilogue(x, y, bias, false, false, "tanh"); }) == ErrorCode::invalid_argument);
  check(fused_bias_act(x, of({1, 2}, {2}), {}, {}, {}, "relu"), {2, 0, 4, 6});
  // gelu(1) is the probability that a normal number is below 1, and gelu(3) three times that of 3.
  check(fused_bias_act(x, {}, {}, {}, {}, "geglu"), {-2 * 0.841344746068543, 12 * 0.998650101968370});
  CHECK(code_of([&] { fused_bias_act(x, {}, bias, {}, {}, "relu"); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { fused_bias_act(bias, x, {}, {}, {}, "relu"); }) == ErrorCode::shape_mismatch);
  check(fused_dropout_add(x, y, {}, 0.0f), {2, -2, 5, 5});
  CHECK(code_of([&] { fused_dropout_add(x, bias, {}, 0.0f); }) == ErrorCode::shape_mismatch);
  const double inf = std::numeric_limits<double>::infinity();
  check(fused_softmax_mask(of({0, 0, 0, std::log(3.0)}, {1, 2, 1, 2}), of({0, -inf}, {1, 1, 1, 2})), {1, 0, 1, 0});
  check(fused_softmax_mask_upper_triangle(of({0, 9, 0, std::log(3.0)}, {1, 1, 2, 2})), {1, 0, .25, .75});
}

TEST_CASE("variances and deviations of few elements, and of none") {
  const Tensor x = of({1, 2, 4, 8, 8, 8}, {2, 3});
  check(var(x, {1}), {7.0 / 3, 0});
  check(var(x, {1}, false), {14.0 / 9, 0});
  check(std_op(x, {-1}, true, true), {std::sqrt(7.0 / 3), 0});
  CHECK(std_op(x, {-1}, true, true).dims() == Dims{2, 1});
  check(var(of({3}, {1})), {0});  // one element has no n - 1
  CHECK(std::isnan(var(zeros({0}, DType::float64)).to_vector<double>()[0]));
  CHECK(var(zeros({0, 3}, DType::float64), {1}).dims() == Dims{0});
  // Of large numbers that are near each other.
  check(var(of({1e8 + 1, 1e8 + 2, 1e8 + 3}, {3})), {1});
  const Tensor equal = of({5, 5, 5}, {3}).set_requires_grad(true);
  std_op(equal).backward();
  check(equal.grad(), {0, 0, 0});
  CHECK(code_of([&] { var(cast(x, DType::int32)); }) == ErrorCode::dtype_mismatch);
  CHECK(code_of([&] { std_op(x, {2}); }) == ErrorCode::out_of_range);
  CHECK(code_of([&] { var(x, {0, 0}); }) == ErrorCode::invalid_argument);
}

TEST_CASE("medians of integers are halves, and NaN wins") {
  check(cast(median(Tensor::from_data(std::vector<int32_t>{4, 1, 2, 8}, {4})), DType::float64), {3});
  check(cast(median(Tensor::from_data(std::vector<int32_t>{4, 1, 3, 8}, {4})), DType::float64), {3.5});
  CHECK(median(Tensor::from_data(std::vector<int32_t>{4, 1}, {2}), {}, false, "min").dtype() == DType::int32);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> got = median(of({1, nan, 3, 1, 2, 3}, {2, 3}), {1}).to_vector<double>();
  CHECK(std::isnan(got[0]));
  CHECK(got[1] == 2);
  CHECK(code_of([&] { median(of({1, 2}, {2}), {}, false, "max"); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { median(of({1, 2}, {2}), {1}); }) == ErrorCode::out_of_range);
  for (const char* mode : {"avg", "min"})
    CHECK(code_of([&] { median(isnan(of({1, nan}, {2})), {}, false, mode); }) == ErrorCode::dtype_mismatch);
}

TEST_CASE("elements are filled by a mask, and numbers that are not finite by finite ones") {
  const Tensor mask = greater_than(of({0, 1}, {2, 1}), of({0}, {1}));
  check(masked_fill(of({1, 2, 3}, {3}), mask, 7), {1, 2, 3, 7, 7, 7});
  CHECK(code_of([&] { masked_fill(of({1}, {1}), of({1}, {1}), 7); }) == ErrorCode::dtype_mismatch);
  CHECK(code_of([&] {
          masked_fill(of({1, 2, 3}, {3}), cast(of({1, 0}, {2}), DType::boolean), 7);
        }) == ErrorCode::shape_mismatch);
  CHECK(code_of([&] { masked_fill(cast(of({1}, {1}), DType::int32), cast(of({1}, {1}), DType::boolean), 0.5); }) ==
        ErrorCode::dtype_mismatch);
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = of({1, nan, infinity, -infinity}, {4});
  const double largest = std::numeric_limits<double>::max();
  CHECK(nan_to_num(x).to_vector<double>() == std::vector<double>{1, 0, largest, -largest});
  CHECK(nan_to_num(x, 5, infinity, -2).to_vector<double>() == std::vector<double>{1, 5, infinity, -2});
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const std::vector<double> filled = cast(nan_to_num(cast(x, dtype)), DType::float64).to_vector<double>();
    INFO(to_string(dtype));
    CHECK(std::isfinite(filled[2]));
    CHECK(filled[3] == -filled[2]);
    // The next number is infinite.
    const Tensor more = multiply(cast(of({filled[2]}, {1}), dtype), cast(of({1.01}, {1}), dtype));
    CHECK(std::isinf(cast(more, DType::float64).to_vector<double>()[0]));
  }
  CHECK(nan_to_num(Tensor::from_data(std::vector<int32_t>{3}, {1})).to_vector<int32_t>() == std::vector<int32_t>{3});
}

}  // namespace composed_layers_test
