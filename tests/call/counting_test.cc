// unique_consecutive, bincount and nanmedian: what their cases do not show, which are errors, ends, and values that are
// not numbers.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace counting_test {

using namespace shard;
using namespace shard::test;

namespace {

using Values = std::vector<double>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargest = std::numeric_limits<double>::max();

Tensor reals(const Values& values, const Dims& dims) { return Tensor::from_data(values, dims); }
Tensor ints(const std::vector<int64_t>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
}
Values of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }

}  // namespace

TEST_CASE("unique_consecutive leaves equal neighbours out, elements or slices along an axis") {
  const auto [out, index, counts] = unique_consecutive(ints({1, 1, 2, 2, 3, 1, 1, 2}), true, true);
  CHECK(of(out) == Values{1, 2, 3, 1, 2});
  CHECK(of(index) == Values{0, 0, 1, 1, 2, 3, 3, 4});
  CHECK(of(counts) == Values{2, 2, 1, 2, 1});
  const Tensor x = reals({2, 1, 1, 3, 2, 1, 1, 3}, {2, 4});
  CHECK(std::get<0>(unique_consecutive(x, false, false, {0})).dims() == Dims{1, 4});
  const auto [columns, of_columns, sizes] = unique_consecutive(x, true, false, {-1}, DType::int32);
  CHECK(of(columns) == Values{2, 1, 3, 2, 1, 3});
  CHECK(of_columns.to_vector<int32_t>() == std::vector<int32_t>{0, 1, 1, 2});
  CHECK(sizes.dims() == Dims{0});
  CHECK(std::get<0>(unique_consecutive(zeros({}))).dims() == Dims{1});
  CHECK(std::get<0>(unique_consecutive(zeros({3, 0}))).dims() == Dims{0});
  CHECK(std::get<0>(unique_consecutive(zeros({3, 0}), false, false, {0})).dims() == Dims{1, 0});
}

TEST_CASE("for unique_consecutive zeros are equal and NaNs are not") {
  const auto [out, index, counts] = unique_consecutive(reals({0, -0.0, kNaN, kNaN}, {4}), false, true);
  CHECK(of(counts) == Values{2, 1, 1});
}

TEST_CASE("unique_consecutive refuses arguments that do not fit") {
  const Tensor x = zeros({2, 3});
  check_refused([&] { unique_consecutive(x, false, false, {0, 1}); }, ErrorCode::invalid_argument, "axis is [0, 1]");
  check_refused([&] { unique_consecutive(x, false, false, {2}); }, ErrorCode::out_of_range, "axis is 2");
  check_refused([&] { unique_consecutive(x, true, false, {}, DType::float32); }, ErrorCode::dtype_mismatch, "dtype is");
  check_refused([] { unique_consecutive_rows(zeros({})); }, ErrorCode::shape_mismatch, "must have a first dim");
}

TEST_CASE("bincount counts or adds up weights, and has zeros up to minlength") {
  const Tensor x = ints({3, 1, 1, 0, 3, 3});
  CHECK(bincount(x, {}).to_vector<int64_t>() == std::vector<int64_t>{1, 2, 0, 3});
  CHECK(bincount(cast(x, DType::int32), {}, 6).to_vector<int64_t>() == std::vector<int64_t>{1, 2, 0, 3, 0, 0});
  const Tensor weights = cast(reals({1, 2, 3, 4, 5, 0.5}, {6}), DType::float32);
  CHECK(bincount(x, weights).to_vector<float>() == std::vector<float>{4, 5, 0, 6.5});
  CHECK(bincount(x, cast(weights, DType::int32)).to_vector<double>() == Values{4, 5, 0, 6});
  CHECK(bincount(ints({}), {}, 2).to_vector<int64_t>() == std::vector<int64_t>{0, 0});
  CHECK(bincount(ints({}), {}).dims() == Dims{0});
}

TEST_CASE("bincount counts many numbers as few") {
  const int64_t count = 1000000;
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i * i % 10);
  const int64_t tenth = count / 10;
  CHECK(bincount(ints(numbers), {}).to_vector<int64_t>() ==
        std::vector<int64_t>{tenth, 2 * tenth, 0, 0, 2 * tenth, tenth, 2 * tenth, 0, 0, 2 * tenth});
}

TEST_CASE("bincount refuses arguments that do not fit") {
  const Tensor x = ints({2, 1});
  check_refused([] { bincount(ints({1, -1}), {}); }, ErrorCode::out_of_range, "x is -1 at element 1");
  check_refused([] { bincount(ints({std::numeric_limits<int64_t>::max()}), {}); }, ErrorCode::out_of_range, "x is");
  check_refused([&] { bincount(x, {}, -1); }, ErrorCode::invalid_argument, "minlength is -1");
  check_refused([&] { bincount(x, zeros({3})); }, ErrorCode::shape_mismatch, "weights is");
  check_refused([&] { bincount(x, zeros({2}, DType::bfloat16)); }, ErrorCode::dtype_mismatch, "weights is");
  check_refused([&] { bincount(reshape(x, {1, 2}), {}); }, ErrorCode::shape_mismatch, "must be [n]");
  check_refused([] { bincount(zeros({2}), {}); }, ErrorCode::dtype_mismatch, "x is");
}

TEST_CASE("nanmedian takes the elements in the middle of those that are numbers") {
  const Tensor x = reals({kNaN, 2, 3, 0, 1, 2, kNaN, kNaN, kNaN}, {3, 3});
  const auto [out, medians] = nanmedian(x, {1}, false);
  CHECK(of(out)[0] == 2.5);
  CHECK(of(out)[1] == 1);
  CHECK(std::isnan(of(out)[2]));
  CHECK(medians.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 1, 1, -1, -1});
  const auto [least, places] = nanmedian(x, {-1}, true, "min");
  CHECK(least.dims() == Dims{3, 1});
  CHECK(of(least)[0] == 2);
  CHECK(places.to_vector<int64_t>() == std::vector<int64_t>{1, 1, -1});
  CHECK(std::get<0>(nanmedian(x)).dims() == Dims{1, 1});
  CHECK(std::get<1>(nanmedian(reals({7}, {}), {}, false)).dims() == Dims{2});
}

TEST_CASE("the mean of two medians does not overflow, and that of integers is rounded towards zero") {
  CHECK(of(std::get<0>(nanmedian(reals({kLargest, kLargest}, {2}), {}, false))) == Values{kLargest});
  CHECK(of(std::get<0>(nanmedian(ints({-3, 0}), {}, false))) == Values{-1});
  CHECK(of(std::get<0>(nanmedian(ints({3, 0}), {}, false))) == Values{1});
  const int64_t largest = std::numeric_limits<int64_t>::max();
  CHECK(std::get<0>(nanmedian(ints({largest, largest - 2}), {}, false)).to_vector<int64_t>()[0] == largest - 1);
}

TEST_CASE("the gradient of nanmedian goes to the elements in the middle") {
  const auto gradient = [](const Values& values, const char* mode) {
    const Tensor x = reals(values, {static_cast<int64_t>(values.size())}).set_requires_grad(true);
    std::get<0>(nanmedian(x, {}, false, mode)).backward(reals({6}, {}));
    return of(x.grad());
  };
  CHECK(gradient({4, kNaN, 1, 9, 8}, "avg") == Values{3, 0, 0, 0, 3});
  CHECK(gradient({4, kNaN, 1, 9, 8}, "min") == Values{6, 0, 0, 0, 0});
  CHECK(gradient({4, kNaN, 1, 9}, "avg") == Values{6, 0, 0, 0});
  CHECK(gradient({5, 5, 5}, "avg") == Values{0, 6, 0});
  CHECK(gradient({kNaN, kNaN}, "avg") == Values{0, 0});
  const Tensor one = reals({5}, {}).set_requires_grad(true);
  std::get<0>(nanmedian(one)).backward(reals({2}, {}));
  CHECK(of(one.grad()) == Values{2});
}

TEST_CASE("nanmedian refuses arguments that do not fit") {
  const Tensor x = zeros({2, 3});
  check_refused([&] { nanmedian(x, {1}, true, "max"); }, ErrorCode::invalid_argument, "mode is 'max'");
  check_refused([&] { nanmedian(x, {1, -1}); }, ErrorCode::invalid_argument, "twice");
  check_refused([&] { nanmedian(x, {2}); }, ErrorCode::out_of_range, "axis is 2");
  check_refused([] { nanmedian(zeros({2, 0}), {1}); }, ErrorCode::invalid_argument, "no elements");
  check_refused([] { nanmedian(zeros({2}, DType::boolean)); }, ErrorCode::dtype_mismatch, "must be numbers");
  CHECK(std::get<0>(nanmedian(zeros({0, 3}), {1}, false)).dims() == Dims{0});
}

}  // namespace counting_test
