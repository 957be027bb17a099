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

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/interpolation.inc"
#undef SHARD_FORMULA_INLINE

Sampling sampling_of(const Interpolation& how, int64_t in, int64_t out, double factor) {
  using Method = Sampling::Method;
  Sampling sampling{.in = in, .out = out};
  if (how.method != "nearest") sampling.method = how.method == "bicubic" ? Method::cubic : Method::linear;
  if (how.align_corners) {
    sampling.rounds = true;
    if (out > 1) sampling.elements = static_cast<double>(in - 1), sampling.outputs = static_cast<double>(out - 1);
    return sampling;
  }
  sampling.middles = sampling.method == Method::cubic || (sampling.method == Method::linear && how.align_mode == 0);
  sampling.elements = factor > 0 ? 1 : static_cast<double>(in);
  sampling.outputs = factor > 0 ? factor : static_cast<double>(out);
  return sampling;
}

template <class Change>
ShardBox changed_box(const Interpolation& how, const Samplings& samplings, ShardBox box, const ShardBox& other,
                     Change* change) {
  const int space = box.dims.rank() - 2;
  for (int i = 0; i < space; ++i) {
    const int dim = how.first() + i;
    const Range range = change(samplings[static_cast<size_t>(3 - space + i)], {other.begin[dim], other.dims[dim]});
    box.begin[dim] = range.begin;
    box.dims[dim] = range.size;
  }
  return box;
}

}  // namespace

Samplings samplings_of(const Interpolation& how, const Dims& in, const Dims& out) {
  Samplings samplings;
  const int space = in.rank() - 2;
  for (int i = 0; i < space; ++i)
    samplings[static_cast<size_t>(3 - space + i)] =
        sampling_of(how, in[how.first() + i], out[how.first() + i], factor_of(how, i));
  return samplings;
}

Range elements_read(const Sampling& sampling, Range outputs) {
  if (outputs.size == 0) return {};
  const int64_t begin = element_read(sampling, outputs.begin, 0),
                last = element_read(sampling, outputs.begin + outputs.size - 1, sampling.count() - 1);
  return {begin, last + 1 - begin};
}

Range outputs_reading(const Sampling& sampling, Range elements) {
  if (elements.size == 0) return {};
  const int64_t first = first_output(sampling, elements.begin, sampling.count() - 1),
                after = first_output(sampling, elements.begin + elements.size, 0);
  return first >= after ? Range() : Range{first, after - first};
}

ShardBox box_read(const Interpolation& how, const Samplings& samplings, ShardBox box, const ShardBox& outputs) {
  return changed_box(how, samplings, box, outputs, elements_read);
}

ShardBox box_reading(const Interpolation& how, const Samplings& samplings, ShardBox box, const ShardBox& elements) {
  return changed_box(how, samplings, box, elements, outputs_reading);
}

Taps taps_of(const Sampling& sampling, Range elements, Range outputs) {
  Taps taps{.in = elements.size, .out = outputs.size, .count = sampling.count()};
  for (int64_t o = outputs.begin; o < outputs.begin + outputs.size; ++o) {
    const TapWeights weights = tap_weights(sampling, o);
    for (int k = 0; k < taps.count; ++k) {
      taps.places.push_back(element_read(sampling, o, k) - elements.begin);
      taps.weights.push_back(weights.of[k]);
    }
  }
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
