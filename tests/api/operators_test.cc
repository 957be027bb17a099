// Operators, indexing and printing of tensors: each is compared with the op that it stands for, or with plain C++.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace operators_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }

std::string printed(const Tensor& tensor) {
  std::ostringstream stream;
  stream << tensor;
  return stream.str();
}

/// The values as float, with a bool as 0 or 1.
std::vector<float> floats(const Tensor& tensor) { return cast(tensor, DType::float32).to_vector<float>(); }

}  // namespace

TEST_CASE("arithmetic operators compute the ops of their names, with numbers on either side") {
  const Tensor x = Tensor::from_data(std::vector<float>{1, -2, 8}, {3}),
               y = Tensor::from_data(std::vector<float>{4, 5, 2}, {3});
  CHECK((x + y).to_vector<float>() == std::vector<float>{5, 3, 10});
  CHECK((x - y).to_vector<float>() == std::vector<float>{-3, -7, 6});
  CHECK((x * y).to_vector<float>() == std::vector<float>{4, -10, 16});
  CHECK((x / y).to_vector<float>() == std::vector<float>{0.25f, -0.4f, 4});
  CHECK((x + 1).to_vector<float>() == std::vector<float>{2, -1, 9});
  CHECK((1 + x).to_vector<float>() == std::vector<float>{2, -1, 9});
  CHECK((x - 0.5).to_vector<float>() == std::vector<float>{0.5f, -2.5f, 7.5f});
  CHECK((3 - x).to_vector<float>() == std::vector<float>{2, 5, -5});
  CHECK((x * 3).to_vector<float>() == std::vector<float>{3, -6, 24});
  CHECK((0.5f * x).to_vector<float>() == std::vector<float>{0.5f, -1, 4});
  CHECK((x / 4).to_vector<float>() == std::vector<float>{0.25f, -0.5f, 2});
  CHECK((4 / x).to_vector<float>() == std::vector<float>{4, -2, 0.5f});
  CHECK((-x).to_vector<float>() == std::vector<float>{-1, 2, -8});
  CHECK((-(x + y) * 2 - 1).to_vector<float>() == std::vector<float>{-11, -7, -21});
}

TEST_CASE("products and negations with numbers keep the sign of zero, and integers stay exact") {
  const Tensor zero = Tensor::from_data(std::vector<float>{0, -0.0f}, {2});
  const auto signs = [](const Tensor& x) {
    std::vector<bool> negative;
    for (const float value : x.to_vector<float>()) negative.push_back(std::signbit(value));
    return negative;
  };
  CHECK(signs(-zero) == std::vector<bool>{true, false});
  CHECK(signs(zero * -1) == std::vector<bool>{true, false});
  CHECK(signs(zero * 2) == std::vector<bool>{false, true});
  const int64_t big = (int64_t{1} << 53) + 1, least = std::numeric_limits<int64_t>::min();
  const Tensor n = Tensor::from_data(std::vector<int64_t>{big, 7}, {2});
  CHECK((n + 2).to_vector<int64_t>() == std::vector<int64_t>{big + 2, 9});
  CHECK((n * 3).to_vector<int64_t>() == std::vector<int64_t>{big * 3, 21});
  CHECK((-n).to_vector<int64_t>() == std::vector<int64_t>{-big, -7});
  CHECK((7 - n).to_vector<int64_t>() == std::vector<int64_t>{7 - big, 0});
  CHECK((n / 2).to_vector<int64_t>() == std::vector<int64_t>{big / 2, 3});
  CHECK((Tensor::from_data(std::vector<int64_t>{-1}, {1}) - least).to_vector<int64_t>() ==
        std::vector<int64_t>{-(least + 1)});
  for (const auto& call :
       {std::function<void()>([&] { n + 0.5; }), std::function<void()>([&] { n * 0.5; }),
        std::function<void()>([&] { n / 0.5; }), std::function<void()>([&] { n == 0.5; }), std::function<void()>([&] {
          Tensor m = n;
          m /= 0.5;
        })}) {
    error_of(call, ErrorCode::dtype_mismatch);
  }
}

TEST_CASE("comparison operators return bool tensors") {
  const Tensor x = Tensor::from_data(std::vector<float>{1, 2, 3}, {3}),
               y = Tensor::from_data(std::vector<float>{2, 2, 2}, {3});
  CHECK((x == y).dtype() == DType::boolean);
  CHECK(floats(x == y) == std::vector<float>{0, 1, 0});
  CHECK(floats(x != y) == std::vector<float>{1, 0, 1});
  CHECK(floats(x < y) == std::vector<float>{1, 0, 0});
  CHECK(floats(x <= y) == std::vector<float>{1, 1, 0});
  CHECK(floats(x > y) == std::vector<float>{0, 0, 1});
  CHECK(floats(x >= y) == std::vector<float>{0, 1, 1});
  CHECK(floats(x > 1.5) == std::vector<float>{0, 1, 1});
  CHECK(floats(1.5 > x) == std::vector<float>{1, 0, 0});
  CHECK(floats(x == 3) == std::vector<float>{0, 0, 1});
}

TEST_CASE("numbers that the dtype of the tensor beside them cannot hold are refused") {
  const Tensor bytes = full({2}, 200, DType::uint8), ints = full({2}, 5, DType::int32),
               truths = full({2}, 1, DType::boolean);
  const int64_t wide = (int64_t{1} << 32) + 5;
  const auto refuses = [](const auto& expression, const std::string& text) {
    CHECK_THROWS_WITH(expression(), Catch::Contains(text));
  };
  refuses([&] { return ints == wide; }, "the number 4294967301 does not fit into int32");
  refuses([&] { return wide < ints; }, "does not fit into int32");
  refuses([&] { return ints + wide; }, "does not fit into int32");
  refuses([&] { return wide - ints; }, "does not fit into int32");
  refuses([&] { return ints - wide; }, "does not fit into int32");
  refuses([&] { return ints * wide; }, "does not fit into int32");
  refuses([&] { return wide * ints; }, "does not fit into int32");
  refuses([&] { return ints / wide; }, "does not fit into int32");
  refuses([&] { return bytes + 256; }, "the number 256 does not fit into uint8");
  refuses([&] { return bytes * -1; }, "the number -1 does not fit into uint8");
  refuses([&] { return truths == 2; }, "the number 2 does not fit into bool");
  Tensor x = ints;
  refuses([&] { return x += wide; }, "does not fit into int32");
  refuses([&] { return x -= wide; }, "does not fit into int32");
  refuses([&] { return x *= wide; }, "does not fit into int32");
  refuses([&] { return x /= wide; }, "does not fit into int32");
  CHECK(x.to_vector<int32_t>() == std::vector<int32_t>{5, 5});
  CHECK((bytes - 200).to_vector<uint8_t>() == std::vector<uint8_t>{0, 0});
  CHECK((full({1}, 1.0) + wide).to_vector<float>() == std::vector<float>{static_cast<float>(wide) + 1});
}

TEST_CASE("compound assignments write the buffer of their target") {
  Tensor x = Tensor::from_data(std::vector<float>{1, 2, 3, 4}, {4});
  const Tensor view = reshape(x, {2, 2});
  const uint64_t before = x.version();
  x += x;
  x -= 1;
  x *= 4;
  x /= 2;
  x += 0.5;
  x -= Tensor::from_data(std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f}, {4});
  x *= x;
  x /= Tensor::from_data(std::vector<float>{2, 2, 2, 2}, {4});
  CHECK(x.to_vector<float>() == std::vector<float>{2, 18, 50, 98});
  CHECK(view.to_vector<float>() == x.to_vector<float>());
  CHECK(x.version() == before + 8);
}

TEST_CASE("operators record gradients, and an error in backward names the line of the expression") {
  const Tensor x = Tensor::from_data(std::vector<float>{1, 2}, {2});
  x.set_requires_grad(true);
  sum(3 * x * x - x / 2 + 1, {}).backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{5.5f, 11.5f});

  Tensor y = x * 2;
  const int line = __LINE__ + 1;
  const Tensor product = y * y;
  y += 1;
  const std::string message = error_of([&] { sum(product, {}).backward(); }, ErrorCode::autograd);
  check_contains(message, "operators_test.cc:" + std::to_string(line));
  check_contains(message, "operators_test.cc:" + std::to_string(line + 1));
}

TEST_CASE("operators with numbers keep layouts, and send nothing for linear ones") {
  run_ranks(4, [](Rank&) {
    const auto* mesh = ProcessMesh::make({2, 2}, {0, 1, 2, 3}, {"a", "b"});
    const Tensor x = distribute(iota<float>({4, 2}), DistSpec::parse(mesh, "a, b"));
    const Tensor y = 2 * x - 1;
    check(spec_of(y) == spec_of(x), "layout of 2x - 1");
    check(full_tensor(y).to_vector<float>() == std::vector<float>{-1, 1, 3, 5, 7, 9, 11, 13}, "2x - 1");
    const Tensor z = 8 / (x + 1);
    check(spec_of(z) == spec_of(x), "layout of 8 / (x + 1)");
    check(full_tensor(z)[3].to_vector<float>() == std::vector<float>{8.0f / 7, 1}, "8 / (x + 1)");
    check(floats(full_tensor(x >= 6)) == std::vector<float>{0, 0, 0, 0, 0, 0, 1, 1}, "x >= 6");
    const Tensor total = sum(x, {0});  // partial over a
    check(full_tensor(total * 2).to_vector<float>() == std::vector<float>{24, 32}, "twice a pending sum");
    check(full_tensor(total + 1).to_vector<float>() == std::vector<float>{13, 17}, "a pending sum plus 1");
    check(full_tensor(x.index({Slice(1, 3), 1})).to_vector<float>() == std::vector<float>{3, 5}, "a slice");
  });
}

TEST_CASE("index takes positions, slices, new dims and an ellipsis as Python does") {
  const Tensor x = iota<int32_t>({2, 3, 4});
  const auto values = [](const Tensor& t) { return t.to_vector<int32_t>(); };
  CHECK(x[1].dims() == Dims{3, 4});
  CHECK(values(x[1][2]) == std::vector<int32_t>{20, 21, 22, 23});
  CHECK(values(x[-1][-3][-4]) == std::vector<int32_t>{12});
  CHECK(x[0][0][0].dims() == Dims{});
  CHECK(values(x.index({0, Slice(1, 3), 2})) == std::vector<int32_t>{6, 10});
  CHECK(values(x.index({kEllipsis, -1})) == std::vector<int32_t>{3, 7, 11, 15, 19, 23});
  CHECK(values(x.index({1, kEllipsis, Slice(std::nullopt, std::nullopt, 3)})) ==
        std::vector<int32_t>{12, 15, 16, 19, 20, 23});
  CHECK(values(x.index({0, 0, Slice(std::nullopt, std::nullopt, -1)})) == std::vector<int32_t>{3, 2, 1, 0});
  CHECK(values(x.index({0, 0, Slice(-1, 0, -2)})) == std::vector<int32_t>{3, 1});
  CHECK(values(x.index({0, 0, Slice(2, -1, -1)})).empty());
  CHECK(values(x.index({0, 0, Slice(-100, 100)})) == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(x.index({Slice(5, 9)}).dims() == Dims{0, 3, 4});
  CHECK(x.index({kNewAxis, 1, kNewAxis, Slice(1), kEllipsis, kNewAxis}).dims() == Dims{1, 1, 2, 4, 1});
  CHECK(x.index({}).dims() == x.dims());
  CHECK_FALSE(x.index({Slice()}).shares_buffer_with(x));  // always a copy
  check_contains(error_of([&] { x[2]; }, ErrorCode::out_of_range), "position 2 is outside dim 0 of size 2");
  check_contains(error_of([&] { x[-3]; }, ErrorCode::out_of_range), "position -3");
  check_contains(error_of([&] { x.index({0, 0, 0, 0}); }, ErrorCode::out_of_range), "4 positions and slices");
  check_contains(error_of([&] { x.index({Slice(0, 1, 0)}); }, ErrorCode::invalid_argument), "step of 0");
  check_contains(error_of([&] { x.index({kEllipsis, kEllipsis}); }, ErrorCode::invalid_argument), "2 ellipses");
}

TEST_CASE("index agrees with loops over all slices of a dim") {
  const int n = 4;
  const Tensor x = iota<int32_t>({n});
  int checked = 0;
  for (int start = -n - 2; start <= n + 2; ++start) {
    for (int stop = -n - 2; stop <= n + 2; ++stop) {
      for (const int step : {-5, -3, -2, -1, 1, 2, 3, 5}) {
        std::vector<int32_t> expected;
        const int from = start < 0 ? start + n : start, to = stop < 0 ? stop + n : stop;
        const int low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
        int last = std::min(std::max(to, low), high);
        for (int i = std::min(std::max(from, low), high); step > 0 ? i < last : i > last; i += step)
          expected.push_back(i);
        CAPTURE(start, stop, step);
        REQUIRE(x.index({Slice(start, stop, step)}).to_vector<int32_t>() == expected);
        ++checked;
      }
    }
  }
  CHECK(checked == 13 * 13 * 8);
}

TEST_CASE("gradients flow through indices") {
  const Tensor x = iota<float>({2, 3});
  x.set_requires_grad(true);
  sum(x.index({1, Slice(std::nullopt, std::nullopt, -2)}) * 2 + x[0][1], {}).backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{0, 2, 0, 2, 0, 2});
}

TEST_CASE("tensors print their values in nested braces, with dtype, shape and layout") {
  CHECK(printed(iota<int32_t>({2, 2})) == "i32[2, 2] {{0, 1}, {2, 3}}");
  CHECK(printed(iota<float>({2, 1, 2}, 0.5f)) == "f32[2, 1, 2] {{{0.5, 1.5}}, {{2.5, 3.5}}}");
  CHECK(printed(full({}, 7, DType::int64)) == "i64[] 7");
  CHECK(printed(zeros({0, 3}, DType::boolean)) == "bool[0, 3] {}");
  CHECK(printed(zeros({2, 0})) == "f32[2, 0] {}");
  CHECK(printed(Tensor()) == "undefined tensor");
  const std::string large = printed(iota<int32_t>({3, 50}));
  CHECK_THAT(large,
             Catch::StartsWith("i32[3, 50] {{0, 1, ") &&
                 Catch::EndsWith("48, 49}, {50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, ...}, ...}"));
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({2, 2}), DistSpec::parse(line(2), "p, -"));
    const std::string expected = rank.id() == 0 ? "local shard [1, 2] {{0, 1}}" : "local shard [1, 2] {{2, 3}}";
    check(printed(x) == "f32[2, 2], layout [p, -] on mesh(p=2), " + expected, printed(x));
  });
}

}  // namespace operators_test
