// Kernels of convolutions: against numbers of PyTorch 2.15 (float64), against the definition, and by oneDNN against products of
// matrices.
#include "shard/kernels/cpu/conv.h"
#include "kernels/image_testing.h"

namespace shard::testing::conv_test {
namespace {

using Conv = void(const OpContext&, const DenseTensor&, const DenseTensor&, const IntArray&, const IntArray&,
                  const std::string&, const IntArray&, int, const std::string&, DenseTensor&);
using ConvGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const IntArray&,
                      const IntArray&, const std::string&, const IntArray&, int, const std::string&, DenseTensor&,
                      DenseTensor&);
using Transposed = void(const OpContext&, const DenseTensor&, const DenseTensor&, const IntArray&, const IntArray&,
                        const IntArray&, const IntArray&, const std::string&, int, const IntArray&, const std::string&,
                        DenseTensor&);
using TransposedGrad = void(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
                            const IntArray&, const IntArray&, const IntArray&, const IntArray&, const std::string&, int,
                            const IntArray&, const std::string&, DenseTensor&, DenseTensor&);

/// A convolution whose image, filter and output hold the numbers of `wave`.
void check_conv(const char* op, const char* grad, DType dtype, bool last, const Dims& x, const Dims& filter,
                const Dims& out, const IntArray& strides, const IntArray& paddings, const IntArray& dilations,
                int groups, const std::vector<double>& expected, const std::vector<double>& x_grad,
                const std::vector<double>& filter_grad) {
  INFO(op << " " << to_string(dtype) << (last ? " channels last" : ""));
  const std::string format = x.rank() == 5 ? (last ? "NDHWC" : "NCDHW") : (last ? "NHWC" : "NCHW");
  const auto seen = [&](const DenseTensor& image) { return last ? channels_last(image) : image; };
  const auto back = [&](const DenseTensor& image) { return last ? channels_first(image) : image; };
  const DenseTensor image = seen(wave(x, dtype)), weights = wave(filter, dtype, 7, 5),
                    grads = seen(wave(out, dtype, 5, 3));
  DenseTensor result = uninitialized(grads.dims(), dtype), of_x = uninitialized(image.dims(), dtype),
              of_filter = uninitialized(filter, dtype);
  call<Conv>(op, dtype, image, weights, strides, paddings, "EXPLICIT", dilations, groups, format, result);
  check_close(back(result), expected, 0);
  call<ConvGrad>(grad, dtype, image, weights, grads, strides, paddings, "EXPLICIT", dilations, groups, format, of_x,
                 of_filter);
  check_close(back(of_x), x_grad, 0);
  check_close(of_filter, filter_grad, 0);
}

TEST_CASE("conv2d has groups strides paddings and dilations in both data formats") {
  for (const DType dtype : kFloatDTypes) {
    for (const bool last : {false, true}) {
      check_conv(
          "conv2d", "conv2d_grad", dtype, last, {2, 2, 4, 5}, {4, 1, 3, 2}, {2, 4, 2, 3}, {2, 1}, {1, 0}, {1, 2}, 2,
          {-5, -2, 1,  12, -25, 4,   -4, -16, 5,   11, 4,  -25, -13, -1,  11, 16, -16, -4,  22, -3, 5,  15, 29,  -12,
           5,  -3, 22, -5, 13,  -24, 11, -1,  -13, -5, 10, 3,   5,   -16, -4, 12, 2,   -19, 1,  -2, -5, -8, -16, 9},
          {2, -2, 8, -2, 2,  -14, 7,  3,  4,  -2, 0, -4, -2, 0,  4, 6,  4, -6, -6, 1,   1,  -6, -6, 4,  6, 5,  -2,
           6, -6, 3, 5,  -2, -6,  5,  -8, 2,  -2, 8, -2, 2,  -4, 2, -2, 4, -2, 5,  -14, -7, 5,  4,  4,  0, -2, -4,
           0, -7, 6, 9,  2,  -6,  -2, 1,  -1, -8, 4, -8, 5,  -6, 5, -6, 2, 5,  4,  -7,  5,  -4, 2,  -2, 4, -2},
          {-12, -9, 15, 9, 22, 16, -14, 27, 10, -4, -14, -6, 6, 19, 10, 10, 10, 10, -7, -18, 9, -10, 0, 14});
      check_conv(
          "depthwise_conv2d", "depthwise_conv2d_grad", dtype, last, {2, 2, 4, 5}, {4, 1, 3, 2}, {2, 4, 2, 3}, {2, 1},
          {1, 0}, {1, 2}, 2,
          {-5, -2, 1,  12, -25, 4,   -4, -16, 5,   11, 4,  -25, -13, -1,  11, 16, -16, -4,  22, -3, 5,  15, 29,  -12,
           5,  -3, 22, -5, 13,  -24, 11, -1,  -13, -5, 10, 3,   5,   -16, -4, 12, 2,   -19, 1,  -2, -5, -8, -16, 9},
          {2, -2, 8, -2, 2,  -14, 7,  3,  4,  -2, 0, -4, -2, 0,  4, 6,  4, -6, -6, 1,   1,  -6, -6, 4,  6, 5,  -2,
           6, -6, 3, 5,  -2, -6,  5,  -8, 2,  -2, 8, -2, 2,  -4, 2, -2, 4, -2, 5,  -14, -7, 5,  4,  4,  0, -2, -4,
           0, -7, 6, 9,  2,  -6,  -2, 1,  -1, -8, 4, -8, 5,  -6, 5, -6, 2, 5,  4,  -7,  5,  -4, 2,  -2, 4, -2},
          {-12, -9, 15, 9, 22, 16, -14, 27, 10, -4, -14, -6, 6, 19, 10, 10, 10, 10, -7, -18, 9, -10, 0, 14});
    }
  }
}

TEST_CASE("conv3d reads windows of three dims") {
  for (const DType dtype : kFloatDTypes) {
    for (const bool last : {false, true}) {
      check_conv("conv3d", "conv3d_grad", dtype, last, {1, 1, 3, 3, 3}, {1, 1, 2, 2, 2}, {1, 1, 2, 4, 2}, {1, 1, 1},
                 {0, 1, 0}, {1, 1, 1}, 1, {-4, 20, 29, -25, -1, -11, -12, -13, 14, 5, 5, -27, -25, -13, -10, 33},
                 {3, -4, 2, 0, 8, -8, -3, 5, 2, 5, -1, 1, 4, -9, -6, 3, 8, -3, -8, -5, 1, -1, 10, -1, 1, -5, -8},
                 {4, 5, 2, 13, -20, -8, 2, 2});
    }
  }
}

TEST_CASE("conv2d_transpose has strides paddings groups and an output padding or size") {
  const Dims x{1, 2, 2, 3}, filter{2, 1, 2, 3};
  for (const DType dtype : kFloatDTypes) {
    for (const int groups : {1, 2}) {
      for (const bool sized : {false, true}) {
        INFO(to_string(dtype) << " groups " << groups);
        const Dims out{1, groups, 5, 6};
        const IntArray padding = sized ? IntArray{} : IntArray{1, 1}, size = sized ? IntArray{5, 6} : IntArray{};
        DenseTensor result = uninitialized(out, dtype), x_grad = uninitialized(x, dtype),
                    filter_grad = uninitialized(filter, dtype);
        call<Transposed>("conv2d_transpose", dtype, wave(x, dtype), wave(filter, dtype, 7, 5), IntArray{2, 2},
                         IntArray{0, 1}, padding, size, "EXPLICIT", groups, IntArray{1, 1}, "NCHW", result);
        if (groups == 1) {
          check_close(result, {-22, 2, 4,   10, 8,  -8, -23, 3, 6,   6, 2, -14, 1, 4, 5,
                               12,  9, -10, 9,  12, 5,  4,   1, -18, 0, 0, 0,   0, 0, 0},
                      0);
        } else {
          check_close(result, {-10, -6,  4,  6,  -4, 0, -15, -9,  6,  6, -6,  -2, 10, -3,  2,  9,  -6, 0,  15, 3,
                               3,   7,   -9, -3, 0,  0, 0,   0,   0,  0, -12, 8,  0,  4,   12, -8, -8, 12, 0,  0,
                               8,   -12, -9, 7,  3,  3, 15,  -10, -6, 9, 2,   -3, 10, -15, 0,  0,  0,  0,  0,  0},
                      0);
        }
        call<TransposedGrad>("conv2d_transpose_grad", dtype, wave(x, dtype), wave(filter, dtype, 7, 5),
                             wave(out, dtype, 5, 3), IntArray{2, 2}, IntArray{0, 1}, padding, size, "EXPLICIT", groups,
                             IntArray{1, 1}, "NCHW", x_grad, filter_grad);
        if (groups == 1) {
          check_close(x_grad, {-2, 3, -11, 4, -11, 5, 3, 2, 1, 3, 1, 5}, 0);
          check_close(filter_grad, {6, 0, 14, -5, 14, -2, 0, -16, 25, -5, 25, -19}, 0);
        } else {
          check_close(x_grad, {-2, 3, -11, 4, -11, 5, 3, 2, 1, 3, 1, 5}, 0);
          check_close(filter_grad, {6, 0, 14, -5, 14, -2, 0, -16, 25, -5, 25, -19}, 0);
        }
      }
    }
  }
}

TEST_CASE("padding algorithms make as many outputs as strides say or pad nothing") {
  const DenseTensor x = tensor({1, 2, 3, 4, 5}, {1, 1, 1, 5}), filter = tensor({1, 10, 100}, {1, 1, 1, 3});
  DenseTensor same = uninitialized({1, 1, 1, 3}, DType::float32), valid = uninitialized({1, 1, 1, 2}, DType::float32);
  call<Conv>("conv2d", DType::float32, x, filter, IntArray{1, 2}, IntArray{7, 7}, "SAME", IntArray{1, 1}, 1, "NCHW",
             same);
  CHECK(values(same) == std::vector<double>{210, 432, 54});
  call<Conv>("conv2d", DType::float32, x, filter, IntArray{1, 2}, IntArray{7, 7}, "VALID", IntArray{1, 1}, 1, "NCHW",
             valid);
  CHECK(values(valid) == std::vector<double>{321, 543});
  // Before and after may differ: two numbers for each dim.
  DenseTensor both = uninitialized({1, 1, 1, 6}, DType::float32);
  call<Conv>("conv2d", DType::float32, x, filter, IntArray{1, 1}, IntArray{0, 0, 1, 2}, "EXPLICIT", IntArray{1, 1}, 1,
             "NCHW", both);
  CHECK(values(both) == std::vector<double>{210, 321, 432, 543, 54, 5});
}

TEST_CASE("a convolution of no images or no channels is empty or zeros") {
  for (const DType dtype : kFloatDTypes) {
    DenseTensor out = tensor({1, 1}, {1, 2, 1, 1}, dtype), none = uninitialized({0, 2, 1, 1}, dtype);
    call<Conv>("conv2d", dtype, uninitialized({1, 0, 2, 2}, dtype), uninitialized({2, 0, 2, 2}, dtype), IntArray{1, 1},
               IntArray{0, 0}, "EXPLICIT", IntArray{1, 1}, 1, "NCHW", out);
    CHECK(values(out) == std::vector<double>{0, 0});
    DenseTensor of_filter = tensor({1, 1}, {2, 1, 1, 1}, dtype), of_x = uninitialized({0, 1, 1, 1}, dtype);
    call<ConvGrad>("conv2d_grad", dtype, uninitialized({0, 1, 1, 1}, dtype), arbitrary({2, 1, 1, 1}, dtype), none,
                   IntArray{1, 1}, IntArray{0, 0}, "EXPLICIT", IntArray{1, 1}, 1, "NCHW", of_x, of_filter);
    CHECK(values(of_filter) == std::vector<double>{0, 0});
  }
}

TEST_CASE("NaN and infinity reach the outputs whose windows hold them") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kFloatDTypes) {
    DenseTensor out = uninitialized({1, 1, 1, 4}, dtype);
    call<Conv>("conv2d", dtype, tensor({1, nan, 2, 3, inf}, {1, 1, 1, 5}, dtype), tensor({1, 1}, {1, 1, 1, 2}, dtype),
               IntArray{1, 1}, IntArray{0, 0}, "EXPLICIT", IntArray{1, 1}, 1, "NCHW", out);
    check_close(out, {nan, nan, 5, inf}, 0);
  }
}

TEST_CASE("NaN in one channel reaches only what reads it, for any number of channels") {
  const auto ones = [](const Dims& dims, DType dtype) {
    return tensor(std::vector<double>(static_cast<size_t>(dims.numel()), 1), dims, dtype);
  };
  for (const DType dtype : kFloatDTypes) {
    for (const int64_t channels : {1, 2, 3, 4, 16, 17}) {
      const Dims x = {1, channels, 1, 6}, f = {channels, channels, 1, 2}, y = {1, channels, 1, 5};
      for (const int64_t at : {int64_t{0}, channels - 1}) {
        INFO(to_string(dtype) << ", " << channels << " channels, NaN in " << at);
        const auto with_nan = [&](const Dims& dims) {
          std::vector<double> all(static_cast<size_t>(dims.numel()), 1);
          all[static_cast<size_t>(at * dims[3] + 2)] = std::numeric_limits<double>::quiet_NaN();
          return tensor(all, dims, dtype);
        };
        const auto grad = [&](const DenseTensor& of_x, const DenseTensor& of_y, DenseTensor& x_grad,
                              DenseTensor& f_grad) {
          call<ConvGrad>("conv2d_grad", dtype, of_x, ones(f, dtype), of_y, IntArray{1, 1}, IntArray{0, 0}, "EXPLICIT",
                         IntArray{1, 1}, 1, "NCHW", x_grad, f_grad);
        };
        DenseTensor out = uninitialized(y, dtype), x_grad = uninitialized(x, dtype), f_grad = uninitialized(f, dtype);
        call<Conv>("conv2d", dtype, with_nan(x), ones(f, dtype), IntArray{1, 1}, IntArray{0, 0}, "EXPLICIT",
                   IntArray{1, 1}, 1, "NCHW", out);
        const std::vector<double> forward = values(out);
        for (size_t i = 0; i < forward.size(); ++i) CHECK(std::isnan(forward[i]) == (i % 5 == 1 || i % 5 == 2));
        grad(with_nan(x), ones(y, dtype), x_grad, f_grad);
        const std::vector<double> of_filter = values(f_grad);
        for (size_t i = 0; i < of_filter.size(); ++i)
          CHECK(std::isnan(of_filter[i]) == (static_cast<int64_t>(i) / 2 % channels == at));
        grad(ones(x, dtype), with_nan(y), x_grad, f_grad);
        const std::vector<double> of_x = values(x_grad);
        for (size_t i = 0; i < of_x.size(); ++i) CHECK(std::isnan(of_x[i]) == (i % 6 == 2 || i % 6 == 3));
      }
    }
  }
}

/// Both ways to compute a pass, of random halves, whose sums are exact in float32.
TEST_CASE("convolutions by oneDNN are those by products of matrices for many shapes") {
  std::mt19937 engine(11);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine() % static_cast<unsigned>(high - low + 1));
  };
  int compared = 0;
  for (int trial = 0; trial < 120; ++trial) {
    cpu::Convolution conv;
    conv.dtype = trial % 3 == 0 ? DType::bfloat16 : DType::float32;
    conv.groups = trial % 4 == 0 ? draw(2, 5) : 1;
    conv.batch = draw(1, 20);
    conv.in = conv.groups * draw(1, 4);
    conv.out = trial % 8 == 0 ? conv.groups : conv.groups * draw(1, 20);
    conv.image = {trial % 5 == 0 ? 3 : 2, trial % 2 == 0};
    for (size_t i = static_cast<size_t>(3 - conv.image.space); i < 3; ++i) {
      meta::Window& w = conv.windows[i];
      w = {draw(3, 7), draw(1, 3), draw(1, 3), draw(0, 2), draw(0, 2), draw(1, 2), 0};
      if (w.in + w.before + w.after < w.reach()) w.dilation = 1;
      w.out = (w.in + w.before + w.after - w.reach()) / w.stride + 1;
    }
    const auto fresh = [&](int64_t count, unsigned seed) { return arbitrary({count}, conv.dtype, seed); };
    const int64_t in = conv.batch * conv.in * conv.in_places(), out = conv.batch * conv.out * conv.out_places();
    for (const auto pass : {cpu::ConvPass::output, cpu::ConvPass::input, cpu::ConvPass::filter}) {
      INFO("trial " << trial << " pass " << int(pass));
      DenseTensor x[2], filter[2], y[2];
      for (int way = 0; way < 2; ++way) {
        x[way] = fresh(in, pass == cpu::ConvPass::input ? 7 + way : 1);
        filter[way] = fresh(conv.filter_numel(), pass == cpu::ConvPass::filter ? 7 + way : 2);
        y[way] = fresh(out, pass == cpu::ConvPass::output ? 7 + way : 3);
      }
      if (!cpu::convolve_by_onednn(pass, conv, {x[0].raw(), filter[0].raw(), y[0].raw()})) continue;
      cpu::convolve_by_products(pass, conv, {x[1].raw(), filter[1].raw(), y[1].raw()});
      ++compared;
      check_close(x[0], values(x[1]), 1);
      check_close(filter[0], values(filter[1]), 1);
      check_close(y[0], values(y[1]), 1);
    }
  }
  CHECK(compared > 200);
}

}  // namespace
}  // namespace shard::testing::conv_test
