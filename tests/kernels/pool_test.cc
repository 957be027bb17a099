// Kernels of pooling and of normalisations of images, against numbers of PyTorch 2.15 (float64) and by hand.
#include "kernels/image_testing.h"

namespace shard::testing::pool_test {
namespace {

using Pool = void(const OpContext&, const DenseTensor&, const IntArray&, const IntArray&, const IntArray&, bool, bool,
                  const std::string&, const std::string&, bool, bool, const std::string&, DenseTensor&);
using PoolGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const IntArray&, const IntArray&,
                      const IntArray&, bool, bool, const std::string&, const std::string&, bool, bool,
                      const std::string&, DenseTensor&);
using IndexPool = void(const OpContext&, const DenseTensor&, const IntArray&, const IntArray&, const IntArray&, bool,
                       bool, DenseTensor&, DenseTensor&);
using IndexPoolGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                           const IntArray&, const IntArray&, const IntArray&, bool, bool, DenseTensor&);

/// Nine digits are given. 16-bit results are rounded once, from numbers that are exact or rounded in float32.
void check_near(const DenseTensor& got, const std::vector<double>& expected) {
  const std::vector<double> actual = values(got);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("element " << i << " of " << to_string(got.meta()));
    CHECK(std::abs(actual[i] - expected[i]) <= 2e-9 + 4 * rounding(got.dtype()) * (1 + std::abs(expected[i])));
  }
}

struct PoolCase {
  IntArray size, strides, paddings;
  bool ceil = false, exclusive = true;
  std::string type;
  bool global = false, adaptive = false;
};

/// In both data formats: the result, the gradient, and the gradient of that, which is the transpose of the gradient.
void check_pool(const Dims& x, const Dims& out, const PoolCase& pool, const std::vector<double>& expected,
                const std::vector<double>& x_grad) {
  const std::string op = x.rank() == 5 ? "pool3d" : "pool2d";
  for (const DType dtype : kFloatDTypes) {
    for (const bool last : {false, true}) {
      INFO(op << " " << pool.type << " " << to_string(dtype) << (last ? " channels last" : ""));
      const std::string format = x.rank() == 5 ? (last ? "NDHWC" : "NCDHW") : (last ? "NHWC" : "NCHW");
      const auto seen = [&](const DenseTensor& image) { return last ? channels_last(image) : image; };
      const auto back = [&](const DenseTensor& image) { return last ? channels_first(image) : image; };
      const DenseTensor image = seen(wave(x, dtype)), grads = seen(wave(out, dtype, 5, 3));
      DenseTensor result = uninitialized(grads.dims(), dtype), of_x = uninitialized(image.dims(), dtype),
                  second = uninitialized(grads.dims(), dtype);
      call<Pool>(op.c_str(), dtype, image, pool.size, pool.strides, pool.paddings, pool.ceil, pool.exclusive, format,
                 pool.type, pool.global, pool.adaptive, "EXPLICIT", result);
      check_near(back(result), expected);
      call<PoolGrad>((op + "_grad").c_str(), dtype, image, grads, pool.size, pool.strides, pool.paddings, pool.ceil,
                     pool.exclusive, format, pool.type, pool.global, pool.adaptive, "EXPLICIT", of_x);
      check_near(back(of_x), x_grad);
      call<PoolGrad>((op + "_double_grad").c_str(), dtype, image, image, pool.size, pool.strides, pool.paddings,
                     pool.ceil, pool.exclusive, format, pool.type, pool.global, pool.adaptive, "EXPLICIT", second);
      check_near(back(second), expected);  // windows of x itself
    }
  }
}

TEST_CASE("the largest element of a window that has only -inf is -inf") {
  for (const DType dtype : kFloatDTypes) {
    for (const std::string format : {"NCHW", "NHWC"}) {
      INFO(to_string(dtype) << " " << format);
      const DenseTensor x = tensor(std::vector<double>(64, -INFINITY), {1, 4, 4, 4}, dtype);
      DenseTensor out = uninitialized(format == "NCHW" ? Dims{1, 4, 2, 2} : Dims{1, 2, 2, 4}, dtype);
      const IntArray size = {2, 2}, paddings = {0, 0};
      call<Pool>("pool2d", dtype, x, size, size, paddings, false, true, format, "max", false, false, "EXPLICIT", out);
      CHECK(values(out) == std::vector<double>(16, -INFINITY));
    }
  }
}

TEST_CASE("pool2d takes maxima and means with and without the padding") {
  const Dims x{1, 2, 4, 5};
  check_pool(x, {1, 2, 2, 3}, {{3, 3}, {2, 2}, {1, 1}, false, true, "max"}, {4, 5, 5, 4, 4, 5, 5, 4, 4, 5, 5, 4},
             {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -2, 0, 0,  0, 0, 0,
              0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0,  0, -2, 0, 0, 0});
  check_pool(x, {1, 2, 3, 3}, {{3, 3}, {2, 2}, {1, 1}, true, false, "avg"},
             {-0.222222222, 0.555555556, 0.555555556, -0.777777778, -0.444444444, -0.222222222, -0.333333333,
              0.166666667, -0.666666667, 0.888888889, -0.222222222, 0.444444444, 0.888888889, 0.222222222, 0.222222222,
              0.5, 0.5, 0.166666667},
             {-0.222222222,
              -0.111111111,
              0.111111111,
              0,
              -0.111111111,
              0,
              0.111111111,
              0.111111111,
              -0.222222222,
              -0.333333333,
              0.222222222,
              0.222222222,
              0,
              -0.222222222,
              -0.222222222,
              0.388888889,
              0.222222222,
              -0.166666667,
              -0.055555556,
              0.111111111,
              0,
              -0.222222222,
              -0.222222222,
              -0.111111111,
              0.111111111,
              -0.111111111,
              -0.111111111,
              0,
              0.111111111,
              0.111111111,
              -0.111111111,
              0.111111111,
              0.222222222,
              0.222222222,
              0,
              -0.444444444,
              -0.055555556,
              0.388888889,
              0.222222222,
              -0.166666667});
  check_pool(x, {1, 2, 3, 3}, {{3, 3}, {2, 2}, {1, 1}, true, true, "avg"},
             {-0.5, 0.833333333, 1.25, -1.166666667, -0.444444444, -0.333333333, -1, 0.333333333, -2, 2, -0.333333333,
              1, 1.333333333, 0.222222222, 0.333333333, 1.5, 1, 0.5},
             {-0.5,
              -0.333333333,
              0.166666667,
              -0.083333333,
              -0.25,
              -0.166666667,
              0,
              0.166666667,
              -0.416666667,
              -0.583333333,
              0.333333333,
              0.333333333,
              0,
              -0.333333333,
              -0.333333333,
              0.833333333,
              0.5,
              -0.333333333,
              0.333333333,
              0.666666667,
              0,
              -0.333333333,
              -0.333333333,
              -0.083333333,
              0.25,
              -0.166666667,
              -0.277777778,
              -0.111111111,
              0.138888889,
              0.25,
              -0.166666667,
              0.055555556,
              0.222222222,
              0.222222222,
              0,
              -1.166666667,
              -0.611111111,
              0.555555556,
              0.055555556,
              -0.5});
}

TEST_CASE("pool2d divides an image among adaptive windows or takes it whole") {
  check_pool({1, 2, 4, 5}, {1, 2, 3, 2}, {{3, 2}, {1, 1}, {0, 0}, false, true, "avg", false, true},
             {-0.666666667, 0.5, -0.5, 0.666666667, -0.333333333, 0.833333333, 0, -0.666666667, 0.166666667, -0.5,
              0.333333333, -0.333333333},
             {-0.333333333,
              -0.333333333,
              -0.166666667,
              0.166666667,
              0.166666667,
              -0.5,
              -0.5,
              0,
              0.5,
              0.5,
              -0.166666667,
              -0.166666667,
              -0.166666667,
              0,
              0,
              0,
              0,
              -0.333333333,
              -0.333333333,
              -0.333333333,
              0.166666667,
              0.166666667,
              0,
              -0.166666667,
              -0.166666667,
              0.5,
              0.5,
              0.333333333,
              -0.166666667,
              -0.166666667,
              0,
              0,
              0.166666667,
              0.166666667,
              0.166666667,
              -0.333333333,
              -0.333333333,
              -0.166666667,
              0.166666667,
              0.166666667});
  check_pool({1, 1, 2, 2}, {1, 1, 1, 1}, {{9, 9}, {7, 7}, {3, 3}, false, true, "max", true, false}, {5}, {0, 0, 0, -2});
}

/// Computed by PaddlePaddle 3.3.1.
TEST_CASE("a mean with padding counts as much padding after an image as before it") {
  DenseTensor out = uninitialized({1, 1, 2, 3}, DType::float64);
  call<Pool>("pool2d", DType::float64, wave({1, 1, 4, 5}), IntArray{3, 3}, IntArray{2, 2}, IntArray{0, 1, 1, 2}, false,
             false, "NCHW", "avg", false, false, "EXPLICIT", out);
  check_near(out, {-8.0 / 9, 0, 8.0 / 9, -4.0 / 3, -2.0 / 3, -1.0 / 6});
}

TEST_CASE("pool3d takes maxima and means of three dims") {
  check_pool({1, 1, 3, 3, 2}, {1, 1, 2, 2, 1}, {{2, 2, 2}, {1, 1, 1}, {0, 0, 0}, false, true, "avg"},
             {0.375, -0.75, 1.125, 0},
             {-0.25, -0.25, -0.125, -0.125, 0.125, 0.125, -0.375, -0.375, 0, 0, 0.375, 0.375, -0.125, -0.125, 0.125,
              0.125, 0.25, 0.25});
  check_pool({1, 1, 3, 3, 2}, {1, 1, 2, 2, 1}, {{2, 2, 2}, {1, 1, 1}, {0, 0, 0}, false, true, "max"}, {5, 5, 5, 5},
             {0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0});
}

TEST_CASE("the first of equal maxima and NaN win a window") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloatDTypes) {
    const DenseTensor x = tensor({2, 2, 1, 3, nan, 4, nan, 9}, {1, 1, 2, 4}, dtype);
    DenseTensor out = uninitialized({1, 1, 2, 2}, dtype), mask = uninitialized({1, 1, 2, 2}, DType::int32);
    call<IndexPool>("max_pool2d_with_index", dtype, x, IntArray{1, 2}, IntArray{1, 2}, IntArray{0, 0}, false, false,
                    out, mask);
    check_close(out, {2, 3, nan, nan}, 0);
    CHECK(values(mask) == std::vector<double>{0, 3, 4, 6});
  }
}

TEST_CASE("maxima of an image without depth that is divided among windows in depth") {
  check_pool({1, 1, 1, 1, 2}, {1, 1, 2, 1, 2}, {{2, 1, 2}, {1, 1, 1}, {0, 0, 0}, false, true, "max", false, true},
             {-5, 2, -5, 2}, {-3, 3});
}

TEST_CASE("max_pool2d_with_index passes gradients by its mask and refuses places outside") {
  for (const DType dtype : kFloatDTypes) {
    const Dims dims{1, 2, 4, 5}, small{1, 2, 2, 3};
    const IntArray size{3, 3}, strides{2, 2}, paddings{1, 1};
    DenseTensor out = uninitialized(small, dtype), mask = uninitialized(small, DType::int32),
                grad = uninitialized(dims, dtype), second = uninitialized(small, dtype);
    call<IndexPool>("max_pool2d_with_index", dtype, wave(dims, dtype), size, strides, paddings, false, false, out,
                    mask);
    CHECK(values(out) == std::vector<double>{4, 5, 5, 4, 4, 5, 5, 4, 4, 5, 5, 4});
    CHECK(values(mask) == std::vector<double>{6, 3, 3, 6, 6, 14, 5, 8, 8, 5, 16, 8});
    call<IndexPoolGrad>("max_pool2d_with_index_grad", dtype, wave(dims, dtype), mask, wave(small, dtype, 5, 3), size,
                        strides, paddings, false, false, grad);
    CHECK(values(grad) == std::vector<double>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -2, 0, 0,  0, 0, 0,
                                              0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0,  0, -2, 0, 0, 0});
    call<IndexPoolGrad>("max_pool2d_with_index_double_grad", dtype, wave(dims, dtype), mask, wave(dims, dtype), size,
                        strides, paddings, false, false, second);
    CHECK(values(second) == values(out));
    mask.data<int32_t>()[1] = 20;
    try {
      call<IndexPoolGrad>("max_pool2d_with_index_grad", dtype, wave(dims, dtype), mask, wave(small, dtype), size,
                          strides, paddings, false, false, grad);
      FAIL("place 20 of an image of 20 elements was accepted");
    } catch (const Error& error) { CHECK(error.code() == ErrorCode::out_of_range); }
  }
}

using GroupNorm = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, float, int,
                       const std::string&, DenseTensor&, DenseTensor&, DenseTensor&);
using GroupNormGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                           const DenseTensor&, const DenseTensor&, const DenseTensor&, float, int, const std::string&,
                           DenseTensor&, DenseTensor&, DenseTensor&);
using InstanceNorm = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, float,
                          DenseTensor&, DenseTensor&, DenseTensor&);
using InstanceNormGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                              const DenseTensor&, const DenseTensor&, const DenseTensor&, DenseTensor&, DenseTensor&,
                              DenseTensor&);

DType statistics(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }

/// Attributes of float32 differ from those of PyTorch, which are doubles, by 3e-13.
TEST_CASE("group_norm normalises each group of channels in both data formats") {
  const Dims dims{2, 4, 3};
  for (const DType dtype : {DType::float64, DType::float32}) {
    for (const bool last : {false, true}) {
      INFO(to_string(dtype) << (last ? " channels last" : ""));
      const std::string format = last ? "NHWC" : "NCHW";
      const auto seen = [&](const DenseTensor& image) { return last ? channels_last(image) : image; };
      const auto back = [&](const DenseTensor& image) { return last ? channels_first(image) : image; };
      const DenseTensor x = seen(wave(dims, dtype)), scale = wave({4}, dtype, 5, 3), bias = wave({4}, dtype, 7, 2);
      DenseTensor y = uninitialized(x.dims(), dtype), mean = uninitialized({2, 2}, statistics(dtype)),
                  variance = uninitialized({2, 2}, statistics(dtype));
      call<GroupNorm>("group_norm", dtype, x, scale, bias, 1e-5f, 2, format, y, mean, variance);
      check_near(back(y), {-0.213897109, -4.393051446, -2.004963253, 0.592058795, -0.601985301, -1.796029398,
                           -0.361969211, 0.848670088,  2.059309387,  5.118618773, 2.697340175,  0.276061577,
                           -3.572597996, -0.824127614, -5.633950783, -1.0572598,  -2.431494991, -0.026583406,
                           0.713701002,  2.087936193,  -0.316975392, 2.885480401, 0.137010018,  4.946833188});
      DenseTensor x_grad = uninitialized(x.dims(), dtype), scale_grad = uninitialized({4}, dtype),
                  bias_grad = uninitialized({4}, dtype);
      call<GroupNormGrad>("group_norm_grad", dtype, x, scale, bias, mean, variance, seen(wave(dims, dtype, 5, 3)),
                          1e-5f, 2, format, x_grad, scale_grad, bias_grad);
      check_near(back(x_grad), {0.774355526,  -0.685688787, 0.319199977,  0.650221808,  -0.135955572, -0.922132952,
                                -0.017712992, 0.513674554,  -0.468237023, 0.266463807,  -1.018107595, 0.72391925,
                                0.872977324,  -0.981114006, 0.030413636,  -0.449442503, 0.788495347,  -0.261329798,
                                -1.058836782, 0.313144756,  -0.198249548, 0.486614395,  -0.202756854, 0.660084033});
      check_near(scale_grad, {1.517975603, 2.485784399, -2.969332261, 2.261758992});
      check_near(bias_grad, {-1, -2, 2, 1});
    }
  }
}

TEST_CASE("instance_norm normalises each channel and keeps its mean and inverse deviation") {
  const Dims dims{2, 4, 3};
  for (const DType dtype : {DType::float64, DType::float32}) {
    INFO(to_string(dtype));
    const DenseTensor x = wave(dims, dtype), scale = wave({4}, dtype, 5, 3), bias = wave({4}, dtype, 7, 2);
    DenseTensor y = uninitialized(dims, dtype), mean = uninitialized({2, 4}, statistics(dtype)),
                inverse = uninitialized({2, 4}, statistics(dtype));
    call<InstanceNorm>("instance_norm", dtype, x, scale, bias, 1e-5f, y, mean, inverse);
    check_near(y, {-0.675048639,
                   -5.557446497,
                   -2.767504864,
                   0.224744297,
                   -1,
                   -2.224744297,
                   -0.224744297,
                   1,
                   2.224744297,
                   5.449488595,
                   3,
                   0.550511405,
                   -3.232495136,
                   -0.442553503,
                   -5.324951361,
                   -0.883752432,
                   -2.278723249,
                   0.162475681,
                   0.883752432,
                   2.278723249,
                   -0.162475681,
                   3.232495136,
                   0.442553503,
                   5.324951361});
    // x begins with -5, 2 and -2.
    CHECK(values(mean)[0] == Approx(-5.0 / 3));
    CHECK(values(inverse)[0] == Approx(1 / std::sqrt(74.0 / 9 + 1e-5)));
    DenseTensor x_grad = uninitialized(dims, dtype), scale_grad = uninitialized({4}, dtype),
                bias_grad = uninitialized({4}, dtype);
    call<InstanceNormGrad>("instance_norm_grad", dtype, x, scale, bias, mean, inverse, wave(dims, dtype, 5, 3), x_grad,
                           scale_grad, bias_grad);
    if (dtype == DType::float64)
      check_near(x_grad, {-0.075402605, -0.056554216, 0.131956821,  5.74e-07,     0,
                          -5.74e-07,    -0.255154918, 0.510310124,  -0.255155205, 0.510309837,
                          -1.020620248, 0.510310411,  0.857718631,  -0.367594628, -0.490124003,
                          -0.428859315, 0.183797314,  0.245062001,  -0.725761809, 0.311040412,
                          0.414721397,  0.131956821,  -0.056554216, -0.075402605});
    check_near(scale_grad, {1.046228112, 2.225283124, -3.317200522, 2.49517788});
    check_near(bias_grad, {-1, -2, 2, 1});
  }
}

TEST_CASE("groups of images without elements have a mean of 0") {
  DenseTensor y = uninitialized({2, 2, 0}, DType::float32), mean = uninitialized({2, 1}, DType::float32),
              variance = uninitialized({2, 1}, DType::float32);
  call<GroupNorm>("group_norm", DType::float32, y, DenseTensor(), DenseTensor(), 1e-5f, 1, "NCHW", y, mean, variance);
  CHECK(values(mean) == std::vector<double>{0, 0});
}

}  // namespace
}  // namespace shard::testing::pool_test
