// infer_meta of convolutions and pooling.
#include <algorithm>
#include <limits>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"
#include "shard/meta/window.h"

namespace shard::meta {
namespace {

/// The filter [rows, columns, kernel..] of a convolution with images of `of_rows` and, in groups, `of_columns`
/// channels. Local shards may hold some of the groups.
void check_filter(const OpContext& ctx, const Meta& input, const Meta& filter, const Image& image, int groups,
                  bool transposed) {
  check_image(ctx, "filter", filter, {image.space, false});
  if (groups < 1) fail(ErrorCode::invalid_argument, "[{}] groups is {}, but must be at least 1", ctx.op, groups);
  const Dims &x = global_dims(ctx, 0, input), &f = global_dims(ctx, 1, filter);
  const int64_t channels = x[image.channel()];
  const bool fits =
      transposed ? f[0] == channels && channels % groups == 0 : f[1] * groups == channels && f[0] % groups == 0;
  if (fits) return;
  if (transposed) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {} and filter is {}, but dim 0 of filter must be the {} channels of x, a multiple of groups, {}",
         ctx.op, to_string(input), to_string(filter), channels, groups);
  }
  fail(ErrorCode::shape_mismatch,
       "[{}] input is {} and filter is {}, but with groups of {} dim 1 of filter must be the {} channels of input "
       "divided by it, and dim 0 a multiple of it",
       ctx.op, to_string(input), to_string(filter), groups, channels);
}

/// Two space dims or three: as most arguments have, so that an error is about one that differs. Lists and formats count
/// double, because ops have defaults for them.
int space_of(std::initializer_list<bool> tensors_have_three, std::initializer_list<bool> defaults_have_three) {
  const auto count = [](const auto& flags) { return std::count(flags.begin(), flags.end(), true); };
  const size_t all = tensors_have_three.size() + 2 * defaults_have_three.size();
  const auto three = static_cast<size_t>(count(tensors_have_three) + 2 * count(defaults_have_three));
  return 2 * three > all ? 3 : 2;
}

Pooling index_pooling(const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                      bool global_pooling, bool adaptive) {
  return {kernel_size, strides, paddings, false, global_pooling, adaptive};
}

void infer_pool(const OpContext& ctx, const Meta& x, const Image& image, const Pooling& pooling,
                const std::string& pooling_type, Meta& out) {
  check_floating(ctx, "x", x);
  check_image(ctx, "x", x, image);
  if (pooling_type != "max" && pooling_type != "avg")
    fail(ErrorCode::invalid_argument, "[{}] pooling_type is {}, but must be max or avg", ctx.op, pooling_type);
  const Windows windows = pool_windows(ctx, image, x.dims, pooling);
  out = {image_dims(image, x.dims[0], x.dims[image.channel()], windows, &Window::out), x.dtype};
}

/// The attributes of the transpose of a convolution over so many space dims.
struct Transposed {
  int space;
  const IntArray &strides, &paddings, &output_padding, &output_size;
  const std::string& padding_algorithm;
  int groups;
  const IntArray& dilations;
  const std::string& data_format;
};

void infer_transposed(const OpContext& ctx, const Meta& x, const Meta& filter, const Transposed& conv, Meta& out) {
  check_floating(ctx, "x", x);
  check_same_dtype(ctx, "x", x, "filter", filter);
  const Image image = transposed_image_of(ctx, conv.data_format, conv.space);
  check_image(ctx, "x", x, image);
  check_filter(ctx, x, filter, image, conv.groups, true);
  const Windows windows =
      conv_transpose_windows(ctx, image, x.dims, filter.dims, conv.strides, conv.paddings, conv.output_padding,
                             conv.output_size, conv.padding_algorithm, conv.dilations);
  out = {image_dims(image, x.dims[0], filter.dims[1] * conv.groups, windows, &Window::in), x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void infer_transposed_grad(const OpContext& ctx, const Meta& x, const Meta& filter, const Meta& out_grad,
                           const Transposed& conv, Meta& x_grad, Meta& filter_grad) {
  Meta out;
  infer_transposed(ctx, x, filter, conv, out);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
  filter_grad = filter;
}

}  // namespace

void ConvInferMeta(const OpContext& ctx, const Meta& input, const Meta& filter, const IntArray& strides,
                   const IntArray& paddings, const std::string& padding_algorithm, const IntArray& dilations,
                   int groups, const std::string& data_format, Meta& out) {
  check_floating(ctx, "input", input);
  check_same_dtype(ctx, "input", input, "filter", filter);
  const int space = space_of({input.dims.rank() == 5, filter.dims.rank() == 5},
                             {strides.size() == 3, data_format.find('D') != std::string::npos});
  const Image image = image_of(ctx, data_format, space);
  check_image(ctx, "input", input, image);
  check_filter(ctx, input, filter, image, groups, false);
  const Windows windows =
      conv_windows(ctx, image, input.dims, filter.dims, strides, paddings, padding_algorithm, dilations);
  out = {image_dims(image, input.dims[0], filter.dims[0], windows, &Window::out), input.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void DepthwiseConvInferMeta(const OpContext& ctx, const Meta& input, const Meta& filter, const IntArray& strides,
                            const IntArray& paddings, const std::string& padding_algorithm, const IntArray& dilations,
                            int groups, const std::string& data_format, Meta& out) {
  ConvInferMeta(ctx, input, filter, strides, paddings, padding_algorithm, dilations, groups, data_format, out);
  if (global_dims(ctx, 1, filter)[1] == 1) return;
  fail(ErrorCode::shape_mismatch,
       "[{}] filter is {}, but dim 1 must be 1, so that groups is the number of input channels; use conv2d", ctx.op,
       to_string(filter));
}

void Conv2dTransposeInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter, const IntArray& strides,
                              const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                              const std::string& padding_algorithm, int groups, const IntArray& dilations,
                              const std::string& data_format, Meta& out) {
  infer_transposed(
      ctx, x, filter,
      {2, strides, paddings, output_padding, output_size, padding_algorithm, groups, dilations, data_format}, out);
}

void ConvTransposeInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter, const IntArray& strides,
                            const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                            const std::string& padding_algorithm, int groups, const IntArray& dilations,
                            const std::string& data_format, Meta& out) {
  infer_transposed(
      ctx, x, filter,
      {3, strides, paddings, output_padding, output_size, padding_algorithm, groups, dilations, data_format}, out);
}

void Pool2DInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_size, const IntArray& strides,
                     const IntArray& paddings, bool ceil_mode, bool, const std::string& data_format,
                     const std::string& pooling_type, bool global_pooling, bool adaptive,
                     const std::string& padding_algorithm, Meta& out) {
  infer_pool(ctx, x, image_of(ctx, data_format, 2),
             {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm}, pooling_type,
             out);
}

void Pool3DInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_size, const IntArray& strides,
                     const IntArray& paddings, bool ceil_mode, bool, const std::string& data_format,
                     const std::string& pooling_type, bool global_pooling, bool adaptive,
                     const std::string& padding_algorithm, Meta& out) {
  infer_pool(ctx, x, image_of(ctx, data_format, 3),
             {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm}, pooling_type,
             out);
}

void MaxPoolWithIndexInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_size,
                               const IntArray& strides, const IntArray& paddings, bool global_pooling, bool adaptive,
                               Meta& out, Meta& mask) {
  const auto three = [](const IntArray& paddings_or_strides) { return paddings_or_strides.size() % 3 == 0; };
  const Image image{space_of({x.dims.rank() == 5, kernel_size.size() == 3}, {three(strides), three(paddings)}), false};
  infer_pool(ctx, x, image, index_pooling(kernel_size, strides, paddings, global_pooling, adaptive), "max", out);
  if (x.dims.numel(2, x.dims.rank()) > std::numeric_limits<int32_t>::max())
    fail(ErrorCode::out_of_range, "[{}] x is {}, whose images have more elements than an int32 index can name", ctx.op,
         to_string(x));
  mask = {out.dims, DType::int32};
}

void ConvGradInferMeta(const OpContext& ctx, const Meta& input, const Meta& filter, const Meta& out_grad,
                       const IntArray& strides, const IntArray& paddings, const std::string& padding_algorithm,
                       const IntArray& dilations, int groups, const std::string& data_format, Meta& input_grad,
                       Meta& filter_grad) {
  Meta out;
  ConvInferMeta(ctx, input, filter, strides, paddings, padding_algorithm, dilations, groups, data_format, out);
  check_like_forward(ctx, "out_grad", out_grad, out);
  input_grad = input;
  filter_grad = filter;
}

void Conv2dTransposeGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter, const Meta& out_grad,
                                  const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                                  const IntArray& output_size, const std::string& padding_algorithm, int groups,
                                  const IntArray& dilations, const std::string& data_format, Meta& x_grad,
                                  Meta& filter_grad) {
  infer_transposed_grad(
      ctx, x, filter, out_grad,
      {2, strides, paddings, output_padding, output_size, padding_algorithm, groups, dilations, data_format}, x_grad,
      filter_grad);
}

void ConvTransposeGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& filter, const Meta& out_grad,
                                const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                                const IntArray& output_size, const std::string& padding_algorithm, int groups,
                                const IntArray& dilations, const std::string& data_format, Meta& x_grad,
                                Meta& filter_grad) {
  infer_transposed_grad(
      ctx, x, filter, out_grad,
      {3, strides, paddings, output_padding, output_size, padding_algorithm, groups, dilations, data_format}, x_grad,
      filter_grad);
}

void Pool2DGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out_grad, const IntArray& kernel_size,
                         const IntArray& strides, const IntArray& paddings, bool ceil_mode, bool exclusive,
                         const std::string& data_format, const std::string& pooling_type, bool global_pooling,
                         bool adaptive, const std::string& padding_algorithm, Meta& x_grad) {
  Meta expected;
  Pool2DInferMeta(ctx, x, kernel_size, strides, paddings, ceil_mode, exclusive, data_format, pooling_type,
                  global_pooling, adaptive, padding_algorithm, expected);
  check_like_forward(ctx, "out_grad", out_grad, expected);
  x_grad = x;
}

void Pool3DGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out_grad, const IntArray& kernel_size,
                         const IntArray& strides, const IntArray& paddings, bool ceil_mode, bool exclusive,
                         const std::string& data_format, const std::string& pooling_type, bool global_pooling,
                         bool adaptive, const std::string& padding_algorithm, Meta& x_grad) {
  Meta expected;
  Pool3DInferMeta(ctx, x, kernel_size, strides, paddings, ceil_mode, exclusive, data_format, pooling_type,
                  global_pooling, adaptive, padding_algorithm, expected);
  check_like_forward(ctx, "out_grad", out_grad, expected);
  x_grad = x;
}

void MaxPoolWithIndexGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& mask, const Meta& out_grad,
                                   const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                                   bool global_pooling, bool adaptive, Meta& x_grad) {
  Meta out, index;
  MaxPoolWithIndexInferMeta(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive, out, index);
  check_like_forward(ctx, "mask", mask, index);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
}

void Pool2DDoubleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& grad_x_grad,
                               const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                               bool ceil_mode, bool exclusive, const std::string& data_format,
                               const std::string& pooling_type, bool global_pooling, bool adaptive,
                               const std::string& padding_algorithm, Meta& grad_out_grad) {
  Pool2DInferMeta(ctx, x, kernel_size, strides, paddings, ceil_mode, exclusive, data_format, pooling_type,
                  global_pooling, adaptive, padding_algorithm, grad_out_grad);
  check_like_forward(ctx, "grad_x_grad", grad_x_grad, x);
}

void Pool3DDoubleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& grad_x_grad,
                               const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                               bool ceil_mode, bool exclusive, const std::string& data_format,
                               const std::string& pooling_type, bool global_pooling, bool adaptive,
                               const std::string& padding_algorithm, Meta& grad_out_grad) {
  Pool3DInferMeta(ctx, x, kernel_size, strides, paddings, ceil_mode, exclusive, data_format, pooling_type,
                  global_pooling, adaptive, padding_algorithm, grad_out_grad);
  check_like_forward(ctx, "grad_x_grad", grad_x_grad, x);
}

void MaxPoolWithIndexDoubleGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& mask, const Meta& grad_x_grad,
                                         const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                                         bool global_pooling, bool adaptive, Meta& grad_out_grad) {
  Meta index;
  MaxPoolWithIndexInferMeta(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive, grad_out_grad, index);
  check_like_forward(ctx, "mask", mask, index);
  check_like_forward(ctx, "grad_x_grad", grad_x_grad, x);
}

}  // namespace shard::meta
