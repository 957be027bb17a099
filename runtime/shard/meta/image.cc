// infer_meta of ops that sample images, and where they read.
#include "shard/meta/image.h"

#include <algorithm>
#include <cmath>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The numbers of space dims that a method has.
struct Space {
  int least, most;
};

Space space_of(const OpContext& ctx, const std::string& method) {
  if (method == "nearest") return {1, 3};
  if (method == "linear") return {1, 1};
  if (method == "bilinear" || method == "bicubic") return {2, 2};
  if (method == "trilinear") return {3, 3};
  fail(ErrorCode::invalid_argument,
       "[{}] interp_method is '{}', but must be nearest, linear, bilinear, trilinear or bicubic", ctx.op, method);
}

void check_image(const OpContext& ctx, const Meta& x, const Interpolation& how) {
  check_floating(ctx, "x", x);
  if (!how.data_format.starts_with('N') || how.data_format.find('C') == std::string::npos) {
    fail(ErrorCode::invalid_argument, "[{}] data_format is '{}', but must be NCHW, NHWC or one with other space dims",
         ctx.op, how.data_format);
  }
  const Space space = space_of(ctx, how.method);
  const int given = x.dims.rank() - 2;
  if (given < space.least || given > space.most) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have {} to {} dims for the interp_method {}", ctx.op,
         to_string(x), space.least + 2, space.most + 2, how.method);
  }
  if (how.align_mode != 0 && how.align_mode != 1)
    fail(ErrorCode::invalid_argument, "[{}] align_mode is {}, but must be 0 or 1", ctx.op, how.align_mode);
  if (!how.scale.empty() && how.scale.size() != 1 && how.scale.size() != static_cast<size_t>(given)) {
    fail(ErrorCode::invalid_argument, "[{}] scale has {} numbers, but must have 1 or {}, one for each space dim of x",
         ctx.op, how.scale.size(), given);
  }
  for (const float factor : how.scale) {
    if (!(factor > 0)) fail(ErrorCode::invalid_argument, "[{}] scale has {}, but must be above 0", ctx.op, factor);
  }
}

/// The factor of space dim i; 0 where none is given.
double factor_of(const Interpolation& how, int i) {
  if (how.scale.empty()) return 0;
  return static_cast<double>(how.scale[how.scale.size() == 1 ? 0 : static_cast<size_t>(i)]);
}

void check_absent(const OpContext& ctx, std::string_view name, bool absent) {
  if (absent) return;
  fail(ErrorCode::invalid_argument,
       "[{}] {} is a tensor, but the shape of the result cannot come from data; pass out_h and out_w, or scale", ctx.op,
       name);
}

/// The places of outputs between elements, which are whole numbers exactly where they should be.
struct Line {
  double in = 0, out = 1;  // so many elements are as far as so many outputs
  bool middles = false;    // places are those of the middles of elements
  double at(int64_t o) const {
    const auto number = static_cast<double>(o);
    return middles ? (number + 0.5) * in / out - 0.5 : number * in / out;
  }
};

/// The four weights of cubic convolution for a place `t` after the second of four elements.
std::array<double, 4> cubic_weights(double t) {
  constexpr double a = -0.75;
  const auto near = [](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  const auto far = [](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  return {far(t + 1), near(t), near(1 - t), far(2 - t)};
}

void add_tap(Taps& taps, int64_t place, double weight) {
  taps.places.push_back(std::clamp<int64_t>(place, 0, taps.in - 1));
  taps.weights.push_back(weight);
}

void add_taps(Taps& taps, const Interpolation& how, const Line& line, int64_t o) {
  if (how.method == "nearest")
    return add_tap(taps, static_cast<int64_t>(line.at(o) + (how.align_corners ? 0.5 : 0)), 1);
  if (how.method == "bicubic") {
    const double at = line.at(o), first = std::floor(at);
    const std::array<double, 4> weights = cubic_weights(at - first);
    for (int k = 0; k < 4; ++k) add_tap(taps, static_cast<int64_t>(first) - 1 + k, weights[static_cast<size_t>(k)]);
    return;
  }
  const double at = std::max(line.at(o), 0.0), first = std::floor(at);
  add_tap(taps, static_cast<int64_t>(first), 1 - (at - first));
  add_tap(taps, static_cast<int64_t>(first) + 1, at - first);
}

Taps taps_along(const Interpolation& how, int64_t in, int64_t out, double factor) {
  Taps taps{.in = in, .out = out, .count = how.method == "nearest" ? 1 : how.method == "bicubic" ? 4 : 2};
  Line line;
  if (how.align_corners) {
    if (out > 1) line = {static_cast<double>(in - 1), static_cast<double>(out - 1)};
  } else {
    line.middles = how.method == "bicubic" || (how.method != "nearest" && how.align_mode == 0);
    line.in = factor > 0 ? 1 : static_cast<double>(in);
    line.out = factor > 0 ? factor : static_cast<double>(out);
  }
  for (int64_t o = 0; o < out && in > 0; ++o) add_taps(taps, how, line, o);
  return taps;
}

}  // namespace

std::array<Taps, 3> taps_of(const Interpolation& how, const Dims& in, const Dims& out) {
  const Taps one{.places = {0}, .weights = {1}};
  std::array<Taps, 3> taps = {one, one, one};
  const int space = in.rank() - 2;
  for (int i = 0; i < space; ++i)
    taps[static_cast<size_t>(3 - space + i)] =
        taps_along(how, in[how.first() + i], out[how.first() + i], factor_of(how, i));
  return taps;
}

void InterpolateInferMeta(const OpContext& ctx, const Meta& x, const Meta* out_size, std::span<const Meta> size_tensor,
                          const Meta* scale_tensor, const std::string& data_format, int out_d, int out_h, int out_w,
                          const std::vector<float>& scale, const std::string& interp_method, bool align_corners,
                          int align_mode, Meta& output) {
  const Interpolation how{data_format, scale, interp_method, align_corners, align_mode};
  check_absent(ctx, "out_size", out_size == nullptr);
  check_absent(ctx, "size_tensor", size_tensor.empty());
  check_absent(ctx, "scale_tensor", scale_tensor == nullptr);
  check_image(ctx, x, how);
  const int space = x.dims.rank() - 2;
  const std::array<int, 3> sizes = {out_d, out_h, out_w};
  output = x;
  for (int i = 0; i < space; ++i) {
    int64_t& size = output.dims[how.first() + i];
    const int64_t in = size;
    const double factor = factor_of(how, i);
    size =
        factor > 0 ? static_cast<int64_t>(static_cast<double>(in) * factor) : sizes[static_cast<size_t>(3 - space + i)];
    if (size < 1 || in < 1) {
      fail(ErrorCode::invalid_argument,
           "[{}] x is {}, and its space dim {} would have {} elements in the result, but both need at least 1; pass "
           "scale, or out_d, out_h and out_w",
           ctx.op, to_string(x), i, size);
    }
  }
  check_size(ctx, output.dims, output.dtype);
}

void InterpolateGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* out_size,
                              std::span<const Meta> size_tensor, const Meta* scale_tensor, const Meta& output_grad,
                              const std::string& data_format, int out_d, int out_h, int out_w,
                              const std::vector<float>& scale, const std::string& interp_method, bool align_corners,
                              int align_mode, Meta& x_grad) {
  Meta output;
  InterpolateInferMeta(ctx, x, out_size, size_tensor, scale_tensor, data_format, out_d, out_h, out_w, scale,
                       interp_method, align_corners, align_mode, output);
  check_like_forward(ctx, "output_grad", output_grad, output);
  x_grad = x;
}

}  // namespace shard::meta
