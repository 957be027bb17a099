// Bad arguments of shape, creation and optimiser ops: the code of the error, and that its text names the op and the argument.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "shard/meta/infer_meta.h"

namespace shard::meta::bad_arguments_test {
namespace {

/// A call that is refused with `code`, in words that name the op, the argument and, where it is given, the value.
struct Bad {
  ErrorCode code;
  std::string argument;
  std::string says;
  std::function<void(const OpContext&)> call;
};

void check_refused(const char* op, const std::vector<Bad>& all) {
  for (const Bad& bad : all) {
    INFO(op << " with a bad " << bad.argument << ": " << bad.says);
    try {
      bad.call({op});
      FAIL_CHECK("it is accepted");
    } catch (const Error& error) {
      CHECK(std::string(to_string(error.code())) == to_string(bad.code));
      CHECK_THAT(error.what(), Catch::StartsWith("[" + std::string(op) + "] "));
      CHECK_THAT(error.what(), Catch::Contains(bad.argument) && Catch::Contains(bad.says));
    }
  }
}

Meta f32(const Dims& dims) { return {dims, DType::float32}; }
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;

TEST_CASE("flatten refuses axes that x does not have or that are in the wrong order") {
  const auto flatten = [](const Dims& dims, int start, int stop) {
    return [=](const OpContext& ctx) {
      Meta out;
      FlattenInferMeta(ctx, f32(dims), start, stop, out);
    };
  };
  check_refused("flatten", {
                               {ErrorCode::out_of_range, "start_axis", "is 2", flatten({2, 3}, 2, 1)},
                               {ErrorCode::out_of_range, "start_axis", "is -3", flatten({2, 3}, -3, 1)},
                               {ErrorCode::out_of_range, "stop_axis", "is 5", flatten({2, 3}, 0, 5)},
                               {ErrorCode::out_of_range, "start_axis", "is 1", flatten({}, 1, 0)},
                               {ErrorCode::out_of_range, "stop_axis", "is -2", flatten({}, 0, -2)},
                               {ErrorCode::invalid_argument, "start_axis 1 comes after stop_axis 0", "f32[2, 3]",
                                flatten({2, 3}, 1, 0)},
                           });
}

TEST_CASE("reshape refuses shapes that do not hold the elements of x") {
  const auto reshape = [](const Dims& dims, const IntArray& shape) {
    return [=](const OpContext& ctx) {
      Meta out;
      ReshapeInferMeta(ctx, f32(dims), shape, out);
    };
  };
  check_refused("reshape",
                {
                    {ErrorCode::shape_mismatch, "shape [4]", "x is f32[2, 3] with 6 elements", reshape({2, 3}, {4})},
                    {ErrorCode::shape_mismatch, "shape [4, -1]", "cannot divide by 4", reshape({2, 3}, {4, -1})},
                    {ErrorCode::shape_mismatch, "shape", "more elements than x", reshape({2, 3}, {kHuge, kHuge})},
                    {ErrorCode::invalid_argument, "shape [-1, -1]", "more than one -1", reshape({2, 3}, {-1, -1})},
                    {ErrorCode::out_of_range, "shape [-2, 3]", "negative dim -2", reshape({2, 3}, {-2, 3})},
                    {ErrorCode::out_of_range, "shape [2, 3, 0]", "a 0 at 2", reshape({2, 3}, {2, 3, 0})},
                    {ErrorCode::out_of_range, "shape", "has 9 dims", reshape({1}, {1, 1, 1, 1, 1, 1, 1, 1, 1})},
                    {ErrorCode::shape_mismatch, "shape [2]", "x is f32[0, 3] with 0 elements", reshape({0, 3}, {2})},
                });
}

TEST_CASE("gaussian refuses shapes, deviations and dtypes that have no numbers") {
  const auto gaussian = [](const IntArray& shape, float std, DType dtype = DType::float32) {
    return [=](const OpContext& ctx) {
      Meta out;
      GaussianInferMeta(ctx, shape, std, dtype, out);
    };
  };
  check_refused("gaussian",
                {
                    {ErrorCode::out_of_range, "shape [2, -1]", "negative dim -1", gaussian({2, -1}, 1)},
                    {ErrorCode::out_of_range, "result", "more bytes than an int64", gaussian({kHuge, 4}, 1)},
                    {ErrorCode::out_of_range, "shape", "has 9 dims", gaussian({1, 1, 1, 1, 1, 1, 1, 1, 1}, 1)},
                    {ErrorCode::invalid_argument, "std", "is -1", gaussian({2}, -1)},
                    {ErrorCode::invalid_argument, "std", "is nan", gaussian({2}, std::nanf(""))},
                    {ErrorCode::dtype_mismatch, "dtype", "is int64", gaussian({2}, 1, DType::int64)},
                    {ErrorCode::dtype_mismatch, "dtype", "is bool", gaussian({2}, 1, DType::boolean)},
                });
}

TEST_CASE("eye refuses negative numbers of rows and columns") {
  const auto eye = [](int64_t rows, int64_t columns) {
    return [=](const OpContext& ctx) {
      Meta out;
      EyeInferMeta(ctx, rows, columns, DType::float32, out);
    };
  };
  check_refused("eye", {
                           {ErrorCode::out_of_range, "num_rows", "is -1", eye(-1, 2)},
                           {ErrorCode::out_of_range, "num_columns", "is -2", eye(2, -2)},
                       });
}

TEST_CASE("slice refuses axes, bounds and dropped dims that input does not have") {
  const auto slice = [](const Dims& dims, const IntArray& axes, const IntArray& starts, const IntArray& ends,
                        const IntArray& dropped = {}) {
    return [=](const OpContext& ctx) {
      Meta out;
      SliceInferMeta(ctx, f32(dims), axes, starts, ends, dropped, out);
    };
  };
  check_refused(
      "slice",
      {
          {ErrorCode::out_of_range, "an axis of axes", "is 2", slice({2, 3}, {2}, {0}, {1})},
          {ErrorCode::invalid_argument, "axes [0, -2]", "the dim 0 twice", slice({2, 3}, {0, -2}, {0, 0}, {1, 1})},
          {ErrorCode::invalid_argument, "starts [0, 0]", "equally many values", slice({2, 3}, {0}, {0, 0}, {1})},
          {ErrorCode::invalid_argument, "ends []", "equally many values", slice({2, 3}, {0}, {0}, {})},
          {ErrorCode::shape_mismatch, "input", "is f32[], which has no dim", slice({}, {0}, {0}, {1})},
          {ErrorCode::out_of_range, "decrease_axis", "is 7", slice({2, 3}, {0}, {0}, {1}, {7})},
          {ErrorCode::shape_mismatch, "decrease_axis", "dim 1, which has 3 elements",
           slice({2, 3}, {0}, {0}, {1}, {1})},
      });
}

TEST_CASE("split refuses sections that do not cover the dim of x") {
  const auto split = [](const Dims& dims, const IntArray& sections, int64_t axis) {
    return [=](const OpContext& ctx) {
      std::vector<Meta> out;
      SplitInferMeta(ctx, f32(dims), sections, axis, out);
    };
  };
  check_refused(
      "split", {
                   {ErrorCode::out_of_range, "axis", "is 2", split({6, 2}, {6}, 2)},
                   {ErrorCode::shape_mismatch, "sections [1, 2]", "add up to 3", split({6, 2}, {1, 2}, 0)},
                   {ErrorCode::shape_mismatch, "sections [4, 4]", "add up to 8", split({6, 2}, {4, 4}, 0)},
                   {ErrorCode::shape_mismatch, "sections [-1, 2, -1]", "at most one -1", split({6, 2}, {-1, 2, -1}, 0)},
                   {ErrorCode::shape_mismatch, "sections [-1, 7]", "whose dim 0 is 6", split({6, 2}, {-1, 7}, 0)},
                   {ErrorCode::shape_mismatch, "sections", "must cover it", split({6, 2}, {kHuge, kHuge, kHuge}, 0)},
                   {ErrorCode::out_of_range, "sections [8, -2]", "negative size -2", split({6, 2}, {8, -2}, 0)},
                   {ErrorCode::shape_mismatch, "x", "is f32[], which has no dim", split({}, {1}, 0)},
               });
  const auto equal = [](const Dims& dims, int num, const Scalar& axis) {
    return [=](const OpContext& ctx) {
      std::vector<Meta> out;
      SplitWithNumInferMeta(ctx, f32(dims), num, axis, out);
    };
  };
  check_refused("split_with_num",
                {
                    {ErrorCode::shape_mismatch, "num", "is 4, and must divide it", equal({6, 2}, 4, 0)},
                    {ErrorCode::shape_mismatch, "num", "is 0, and must divide it", equal({6, 2}, 0, 0)},
                    {ErrorCode::shape_mismatch, "num", "is -2, and must divide it", equal({6, 2}, -2, 0)},
                    {ErrorCode::out_of_range, "axis", "is -3", equal({6, 2}, 2, -3)},
                    {ErrorCode::invalid_argument, "axis", "0.5", equal({6, 2}, 2, 0.5)},
                    {ErrorCode::shape_mismatch, "x", "is f32[], which has no dim", equal({}, 1, 0)},
                });
}

TEST_CASE("adam refuses states that do not belong to param") {
  struct State {
    Meta param = f32({2, 3}), grad = param, rate = f32({1}), moment1 = param, moment2 = param, beta1_pow = rate,
         beta2_pow = rate;
    std::optional<Meta> master = {}, skip = {};
    bool multi_precision = false;
  };
  const auto adam = [](const std::function<void(State&)>& change) {
    return [=](const OpContext& ctx) {
      State s;
      change(s);
      Meta out[6];
      AdamwInferMeta(ctx, s.param, s.grad, s.rate, s.moment1, s.moment2, s.beta1_pow, s.beta2_pow,
                     s.master ? &*s.master : nullptr, s.skip ? &*s.skip : nullptr, s.multi_precision, out[0], out[1],
                     out[2], out[3], out[4], out[5]);
    };
  };
  const Meta ints{{2, 3}, DType::int32}, half{{2, 3}, DType::float16}, other = f32({3, 2});
  check_refused(
      "adam_",
      {
          {ErrorCode::dtype_mismatch, "param", "is i32[2, 3]", adam([&](State& s) { s.param = ints; })},
          {ErrorCode::dtype_mismatch, "grad", "is f16[2, 3]", adam([&](State& s) { s.grad = half; })},
          {ErrorCode::shape_mismatch, "grad", "is f32[3, 2]", adam([&](State& s) { s.grad = other; })},
          {ErrorCode::shape_mismatch, "moment1", "is f32[3, 2]", adam([&](State& s) { s.moment1 = other; })},
          {ErrorCode::shape_mismatch, "moment2", "is f32[3, 2]", adam([&](State& s) { s.moment2 = other; })},
          {ErrorCode::dtype_mismatch, "moment2", "is f16[2, 3]", adam([&](State& s) { s.moment2 = half; })},
          {ErrorCode::dtype_mismatch, "moment1", "is f16[2, 3]", adam([&](State& s) { s.moment1 = s.moment2 = half; })},
          {ErrorCode::shape_mismatch, "learning_rate", "is f32[3, 2]", adam([&](State& s) { s.rate = other; })},
          {ErrorCode::dtype_mismatch, "learning_rate", "is i32[2, 3]", adam([&](State& s) { s.rate = ints; })},
          {ErrorCode::shape_mismatch, "beta1_pow", "is f32[3, 2]", adam([&](State& s) { s.beta1_pow = other; })},
          {ErrorCode::shape_mismatch, "beta2_pow", "is f32[3, 2]", adam([&](State& s) { s.beta2_pow = other; })},
          {ErrorCode::dtype_mismatch, "skip_update", "is f32[3, 2]", adam([&](State& s) { s.skip = other; })},
          {ErrorCode::shape_mismatch, "master_param", "is f32[3, 2]", adam([&](State& s) { s.master = other; })},
          {ErrorCode::dtype_mismatch, "master_param", "is f16[2, 3]", adam([&](State& s) { s.master = half; })},
          {ErrorCode::undefined, "master_param", "multi_precision needs",
           adam([&](State& s) { s.multi_precision = true; })},
      });
}

}  // namespace
}  // namespace shard::meta::bad_arguments_test
