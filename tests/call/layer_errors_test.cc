// What layers of images say of arguments that they refuse, through the ops that users call.
#include <catch2/catch.hpp>

#include <limits>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace layer_errors_test {

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

TEST_CASE("an error of a convolution or of pooling of volumes is about the argument that does not fit") {
  const Tensor x = ones({1, 2, 3, 3, 3}), filter = ones({4, 2, 2, 2, 2}), image = ones({1, 2, 3, 3}),
               flat = ones({4, 2, 2, 2});
  const ErrorCode shape = ErrorCode::shape_mismatch, attribute = ErrorCode::invalid_argument;
  check_refused([&] { conv3d(x, filter, {1, 1}); }, attribute, "strides is [1, 1], but must have 3 numbers");
  check_refused([&] { conv3d(image, filter); }, shape, "input is f32[1, 2, 3, 3], but must have 5 dims");
  check_refused([&] { conv3d(x, flat); }, shape, "filter is f32[4, 2, 2, 2], but must have 5 dims");
  check_refused([&] { conv3d(image, flat); }, shape, "input is f32[1, 2, 3, 3], but must have 5 dims");
  check_refused(
      [&] {
        conv3d(x, filter, {1, 1, 1}, {0, 0, 0}, "EXPLICIT", 1, {1, 1, 1}, "NCHW");
      },
      attribute, "data_format is NCHW, but must be NCDHW or NDHWC");
  check_refused([&] { conv2d(image, flat, {1, 1, 1}); }, attribute, "strides is [1, 1, 1], but must have 2 numbers");
  check_refused([&] { conv2d(x, filter); }, shape, "input is f32[1, 2, 3, 3, 3], but must have 4 dims");
  const IntArray two = {2, 2}, three = {2, 2, 2};
  check_refused([&] { max_pool3d_with_index(x, three, {1, 1}); }, attribute, "strides is [1, 1], but must have 3");
  check_refused([&] { max_pool3d_with_index(x, two); }, attribute, "kernel_size is [2, 2], but must have 3");
  check_refused([&] { max_pool3d_with_index(image, two); }, shape, "x is f32[1, 2, 3, 3], but must have 5 dims");
  check_refused(
      [&] {
        max_pool3d_with_index(x, three, three, {0, 0});
      },
      attribute, "paddings is [0, 0], but must have");
  check_refused([&] { max_pool2d_with_index(image, two, three); }, attribute, "strides is [2, 2, 2], but must have 2");
  CHECK(std::get<0>(max_pool2d_with_index(image, two, two, {0, 1, 0, 0})).dims() == Dims{1, 2, 2, 1});
}

TEST_CASE("pooling of no images to a huge size needs no memory") {
  const Tensor none = zeros({0, 2, 3, 3});
  const int64_t huge = int64_t{1} << 29;
  const Tensor out = pool2d(none, {huge, huge}, {1, 1}, {0, 0}, false, true, "NCHW", "avg", false, true);
  CHECK(out.dims() == Dims{0, 2, huge, huge});
  CHECK(pool2d_grad(none, out, {huge, huge}, {1, 1}, {0, 0}, false, true, "NCHW", "avg", false, true, "EXPLICIT")
            .dims() == none.dims());
  const auto [largest, mask] = max_pool2d_with_index(none, {huge, huge}, {1, 1}, {0, 0}, false, true);
  CHECK(largest.dims() == out.dims());
  CHECK(max_pool2d_with_index_grad(none, mask, largest, {huge, huge}, {1, 1}, {0, 0}, false, true).dims() ==
        none.dims());
}

TEST_CASE("errors of lu's gradient and of dist name these ops and not those that they are made of") {
  const Tensor x = ones({2, 2}, DType::float64).set_requires_grad(true), none = zeros({0, 3});
  check_refused([&] { sum(std::get<0>(lu(x))).backward(); }, ErrorCode::invalid_argument,
                "[lu_grad] a matrix that was decomposed is singular");
  const float infinity = std::numeric_limits<float>::infinity();
  check_refused([&] { dist_op(none, ones({3}), infinity); }, ErrorCode::invalid_argument, "[dist] x is [0, 3]");
  CHECK(item(dist_op(none, ones({3}), 1)).to<double>() == 0);
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

}  // namespace layer_errors_test
