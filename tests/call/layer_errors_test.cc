// What layers of images say of arguments that they refuse, through the ops that users call.
#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

TEST_CASE("transposed convolutions refuse shapes, dtypes and attributes and say which") {
  const Tensor x = ones({1, 2, 3, 3, 3}), filter = ones({2, 4, 2, 2, 2});
  const auto conv = [&](const IntArray& output_padding, const IntArray& output_size, const char* padding, int groups) {
    return conv3d_transpose(x, filter, {2, 2, 2}, {0, 0, 0}, output_padding, output_size, padding, groups);
  };
  CHECK(conv({1, 1, 1}, {}, "EXPLICIT", 1).dims() == Dims{1, 4, 7, 7, 7});
  const ErrorCode shape = ErrorCode::shape_mismatch, attribute = ErrorCode::invalid_argument;
  check_refused(
      [&] {
        conv3d_transpose(ones({1, 2, 3, 3}), filter);
      },
      shape, "[conv3d_transpose] x is f32[1, 2, 3, 3]");
  check_refused([&] { conv3d_transpose(x, ones({3, 4, 2, 2, 2})); }, shape, "must be the 2 channels of x");
  check_refused([&] { conv3d_transpose(x, cast(filter, DType::float64)); }, ErrorCode::dtype_mismatch, "filter is f64");
  check_refused([&] { conv3d_transpose(cast(x, DType::int32), cast(filter, DType::int32)); }, ErrorCode::dtype_mismatch,
                "x is i32");
  check_refused([&] { conv({2, 2, 2}, {}, "EXPLICIT", 1); }, attribute, "must be from 6 to 7");
  check_refused([&] { conv({}, {8, 6, 6}, "EXPLICIT", 1); }, attribute, "dim 2 of the result would be 8");
  check_refused([&] { conv({}, {6, 6}, "EXPLICIT", 1); }, attribute, "output_size is [6, 6], but must have 3 numbers");
  check_refused([&] { conv({}, {}, "FULL", 1); }, attribute, "padding_algorithm is FULL");
  check_refused([&] { conv({}, {}, "EXPLICIT", 0); }, attribute, "groups is 0");

  // depthwise_conv2d_transpose is conv2d_transpose, which errors name.
  const Tensor image = ones({1, 2, 3, 3}), windows = ones({2, 1, 2, 2});
  CHECK(depthwise_conv2d_transpose(image, windows, {1, 1}, {0, 0}, {}, {}, "EXPLICIT", 2).dims() == Dims{1, 2, 4, 4});
  check_refused([&] { depthwise_conv2d_transpose(x, windows); }, shape,
                "x is f32[1, 2, 3, 3, 3], but must have 4 dims");
  check_refused([&] { depthwise_conv2d_transpose(image, windows, {1}); }, attribute, "strides is [1]");
  check_refused(
      [&] {
        depthwise_conv2d_transpose(image, windows, {1, 1}, {5, 5});
      },
      shape, "would leave nothing of dim 2");
}

TEST_CASE("sync_batch_norm_ refuses statistics that are not those of the channels and writes nothing") {
  const Tensor x = ones({2, 3, 4}), mean = zeros({3}), variance = ones({3}), none;
  const auto norm = [&](const Tensor& x, const Tensor& mean, const Tensor& scale, const char* format) {
    return std::get<0>(sync_batch_norm_(x, mean, variance, scale, none, false, 0.9f, 1e-5f, format, false, false));
  };
  check_refused([&] { norm(x, zeros({4}), none, "NCHW"); }, ErrorCode::shape_mismatch,
                "[sync_batch_norm_] mean is f32[4]");
  check_refused([&] { norm(x, mean, ones({4}), "NCHW"); }, ErrorCode::shape_mismatch, "scale is f32[4]");
  check_refused([&] { norm(x, mean, none, "HWC"); }, ErrorCode::invalid_argument, "data_format is HWC");
  check_refused([&] { norm(cast(x, DType::int32), mean, none, "NCHW"); }, ErrorCode::dtype_mismatch, "x is i32");
  check_refused([&] { norm(ones({3}), mean, none, "NCHW"); }, ErrorCode::shape_mismatch, "x is f32[3]");
  CHECK(mean.version() == 0);
  CHECK(variance.version() == 0);
  norm(x, mean, none, "NCHW");
  CHECK(mean.to_vector<float>() == std::vector<float>(3, 1 - 0.9f));
}
