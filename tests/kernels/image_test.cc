// Interpolation: values by hand, what attributes mean, and calls that are refused.
#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace image_test {

using namespace shard;
using namespace shard::test;

namespace {

/// x [1, 1, w] at `count` places.
std::vector<float> line(const std::vector<float>& x, int count, const std::string& method, bool corners, int mode) {
  const Tensor in = Tensor::from_data(x, {1, 1, static_cast<int64_t>(x.size())});
  return nearest_interp(in, {}, {}, {}, "NCHW", 0, 0, count, {}, method, corners, mode).to_vector<float>();
}

Tensor resized(const Tensor& x, int h, int w, const std::vector<float>& scale = {},
               const std::string& method = "bilinear", const std::string& format = "NCHW", int mode = 1) {
  return bilinear_interp(x, {}, {}, {}, format, 0, h, w, scale, method, true, mode);
}

}  // namespace

TEST_CASE("linear interpolation has the places that align_corners and align_mode say") {
  CHECK(line({0, 4}, 3, "linear", true, 1) == std::vector<float>{0, 2, 4});
  CHECK(line({0, 4}, 4, "linear", false, 1) == std::vector<float>{0, 2, 4, 4});
  CHECK(line({0, 4}, 4, "linear", false, 0) == std::vector<float>{0, 1, 3, 4});
  CHECK(line({5, 7, 9}, 1, "linear", true, 1) == std::vector<float>{5});
}

TEST_CASE("nearest interpolation takes the element before a place or, with corners aligned, the nearest one") {
  CHECK(line({1, 2, 3}, 5, "nearest", false, 1) == std::vector<float>{1, 1, 2, 2, 3});
  CHECK(line({1, 2, 3}, 5, "nearest", true, 1) == std::vector<float>{1, 2, 2, 3, 3});
}

TEST_CASE("cubic interpolation of a line is a line within it") {
  const Tensor x = reshape(arange(0, 16, 1, DType::float64), {1, 1, 1, 16});
  const Tensor out = bicubic_interp(x, {}, {}, {}, "NCHW", 0, 1, 31, {}, "bicubic", true, 1);
  const std::vector<double> values = out.to_vector<double>();
  for (size_t i = 2; i + 2 < values.size(); ++i) CHECK(values[i] == Approx(static_cast<double>(i) / 2).epsilon(1e-12));
}

TEST_CASE("a scale multiplies each space dim and is rounded down, also where it is one number for all") {
  const Tensor x = ones({2, 3, 4, 5});
  CHECK(resized(x, 0, 0, {1.5F, 2.0F}).dims() == Dims{2, 3, 6, 10});
  CHECK(resized(x, 9, 9, {0.5F}).dims() == Dims{2, 3, 2, 2});
  CHECK(resized(x, 7, 1, {}, "bilinear", "NHWC").dims() == Dims{2, 7, 1, 5});
}

TEST_CASE("interpolation of 16 bits rounds once") {
  const Tensor x = cast(Tensor::from_data(std::vector<float>{1, 2}, {1, 1, 2}), DType::bfloat16);
  const Tensor out = linear_interp(x, {}, {}, {}, "NCHW", 0, 0, 3, {}, "linear", true, 1);
  CHECK(cast(out, DType::float32).to_vector<float>() == std::vector<float>{1, 1.5F, 2});
}

TEST_CASE("interpolation refuses sizes from tensors and attributes that no image has") {
  const Tensor x = ones({2, 3, 4, 5}), sizes = Tensor::from_data(std::vector<int>{8, 8}, {2});
  const auto invalid = ErrorCode::invalid_argument;
  check_refused(
      [&] { bilinear_interp(x, sizes, {}, {}, "NCHW", 0, 8, 8, {}, "bilinear", true, 1); }, invalid,
      "out_size is a tensor, but the shape of the result cannot come from data; pass out_h and out_w, or scale");
  check_refused([&] { bilinear_interp(x, {}, {sizes}, {}, "NCHW", 0, 8, 8, {}, "bilinear", true, 1); }, invalid,
                "size_tensor is a tensor");
  check_refused([&] { resized(x, 8, 8, {}, "cubic"); }, invalid, "interp_method is 'cubic', but must be nearest");
  check_refused([&] { resized(x, 8, 8, {}, "linear"); }, ErrorCode::shape_mismatch,
                "x is f32[2, 3, 4, 5], but must have 3 to 3 dims");
  check_refused([&] { resized(x, 8, 0); }, invalid, "its space dim 1 would have 0 elements in the result");
  check_refused([&] { resized(ones({2, 3, 0, 5}), 8, 8); }, invalid, "both need at least 1");
  check_refused([&] { resized(x, 8, 8, {1, 2, 3}); }, invalid, "scale has 3 numbers, but must have 1 or 2");
  check_refused([&] { resized(x, 8, 8, {-1}); }, invalid, "scale has -1, but must be above 0");
  check_refused([&] { resized(x, 8, 8, {}, "bilinear", "CHW"); }, invalid, "data_format is 'CHW'");
  check_refused([&] { resized(x, 8, 8, {}, "bilinear", "NCHW", 2); }, invalid, "align_mode is 2, but must be 0 or 1");
  check_refused([&] { resized(cast(x, DType::int32), 8, 8); }, ErrorCode::dtype_mismatch, "must be of a float dtype");
}

TEST_CASE("spectral_norm divides by the largest singular value, and changes no vector") {
  const Tensor weight = Tensor::from_data(std::vector<double>{3, 0, 0, 1}, {2, 2});
  const Tensor u = ones({2}, DType::float64), v = ones({2}, DType::float64);
  const std::vector<double> found = spectral_norm(weight, u, v, 0, 40).to_vector<double>();
  CHECK(found[0] == Approx(1).epsilon(1e-12));
  CHECK(found[3] == Approx(1.0 / 3).epsilon(1e-12));
  CHECK(u.to_vector<double>() == std::vector<double>{1, 1});
  CHECK(v.to_vector<double>() == std::vector<double>{1, 1});
}

TEST_CASE("layers that are composites refuse arguments that do not fit, and quantisation") {
  const Tensor x = ones({2, 3, 4});
  check_refused([&] { prelu(x, ones({3}), "NCHW", "all"); }, ErrorCode::shape_mismatch, "alpha must have 1 elements");
  check_refused([&] { prelu(x, ones({3}), "NHWC", "channel"); }, ErrorCode::shape_mismatch,
                "alpha must have 4 elements");
  check_refused([&] { prelu(x, ones({3}), "NCHW", "row"); }, ErrorCode::invalid_argument, "mode is 'row'");
  check_refused([&] { spectral_norm(x, ones({3}), ones({12})); }, ErrorCode::shape_mismatch,
                "u is f32[3], but must be [2] for the weight f32[2, 3, 4]");
  check_refused([&] { spectral_norm(x, ones({2}), ones({12}), 0, -1); }, ErrorCode::invalid_argument,
                "power_iters is -1");
  check_refused([&] { fused_bias_residual_layernorm(x, {}, {}, {}, {}, 1e-5F, 1, 1, 0.5F, 0, 0, 0); },
                ErrorCode::invalid_argument, "quantisation is not supported");
  const Tensor chosen = zeros({4, 2}, DType::int64);
  check_refused(
      [&] {
        accuracy(ones({4, 2}), chosen, zeros({4}, DType::int64));
      },
      ErrorCode::shape_mismatch, "label [n, 1]");
}

}  // namespace image_test
