// CPU kernels of convolutions, transposed convolutions and their gradients.
#include "shard/kernels/cpu/conv.h"

#include <cstring>

#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"

namespace shard::cpu {

void convolve(ConvPass pass, const Convolution& conv, const ConvTensors& tensors) {
  const bool empty = conv.batch == 0 || conv.in == 0 || conv.out == 0 || conv.in_places() == 0;
  if (empty) {  // sums of nothing
    const auto elements = [&] {
      switch (pass) {
        case ConvPass::output: return conv.batch * conv.out * conv.out_places();
        case ConvPass::input: return conv.batch * conv.in * conv.in_places();
        case ConvPass::filter: return conv.filter_numel();
      }
      __builtin_unreachable();
    }();
    void* const written = pass == ConvPass::output  ? tensors.output
                          : pass == ConvPass::input ? tensors.input
                                                    : tensors.filter;
    if (elements > 0) std::memset(written, 0, static_cast<size_t>(elements) * size_of(conv.dtype));
    return;
  }
  // oneDNN multiplies pairs of bfloat16 channels: beside the last of an odd number it reads an element of another window
  // and multiplies it by 0, which is NaN for one that is not finite.
  const bool pairs = conv.in / conv.groups % 2 == 0 && conv.out / conv.groups % 2 == 0;
  const bool may =
      conv.dtype == DType::float32 || (conv.dtype == DType::bfloat16 && pairs && onednn_multiplies_bfloat16());
  if (!may || !convolve_by_onednn(pass, conv, tensors)) convolve_by_products(pass, conv, tensors);
}

namespace {

/// Of images `input` with the filter [.., of each group, kernel..]. Local shards may hold some of the groups: there are
/// as many as the channels make.
Convolution convolution(const DenseTensor& input, const DenseTensor& filter, int groups, const meta::Image& image,
                        const meta::Windows& windows) {
  const int64_t in = input.dims()[image.channel()], each = filter.dims()[1];
  return {input.dtype(), input.dims()[0], in, filter.dims()[0], groups == 1 || each == 0 ? 1 : in / each,
          image,         windows};
}

Convolution convolution(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter,
                        const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
                        const IntArray& dilations, int groups, const std::string& data_format) {
  const meta::Image image = meta::image_of(ctx, data_format, input.dims().rank() - 2);
  return convolution(
      input, filter, groups, image,
      meta::conv_windows(ctx, image, input.dims(), filter.dims(), strides, paddings, algorithm, dilations));
}

void conv(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter, const IntArray& strides,
          const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int groups,
          const std::string& data_format, DenseTensor& out) {
  convolve(ConvPass::output,
           convolution(ctx, input, filter, strides, paddings, algorithm, dilations, groups, data_format),
           {input.raw(), filter.raw(), out.raw()});
}

void conv_grad(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter, const DenseTensor& out_grad,
               const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
               const IntArray& dilations, int groups, const std::string& data_format, DenseTensor& input_grad,
               DenseTensor& filter_grad) {
  const Convolution conv =
      convolution(ctx, input, filter, strides, paddings, algorithm, dilations, groups, data_format);
  convolve(ConvPass::input, conv, {input_grad.raw(), filter.raw(), out_grad.raw()});
  convolve(ConvPass::filter, conv, {input.raw(), filter_grad.raw(), out_grad.raw()});
}

/// The convolution of images like the result, whose output is like x.
Convolution transposed(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter, const DenseTensor& out,
                       const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                       const IntArray& output_size, const std::string& algorithm, int groups, const IntArray& dilations,
                       const std::string& data_format) {
  const meta::Image image = meta::transposed_image_of(ctx, data_format, x.dims().rank() - 2);
  return convolution(out, filter, groups, image,
                     meta::conv_transpose_windows(ctx, image, x.dims(), filter.dims(), strides, paddings,
                                                  output_padding, output_size, algorithm, dilations));
}

void conv_transpose(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter, const IntArray& strides,
                    const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                    const std::string& algorithm, int groups, const IntArray& dilations, const std::string& data_format,
                    DenseTensor& out) {
  convolve(ConvPass::input,
           transposed(ctx, x, filter, out, strides, paddings, output_padding, output_size, algorithm, groups, dilations,
                      data_format),
           {out.raw(), filter.raw(), x.raw()});
}

void conv_transpose_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                         const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                         const IntArray& output_padding, const IntArray& output_size, const std::string& algorithm,
                         int groups, const IntArray& dilations, const std::string& data_format, DenseTensor& x_grad,
                         DenseTensor& filter_grad) {
  const Convolution conv = transposed(ctx, x, filter, out_grad, strides, paddings, output_padding, output_size,
                                      algorithm, groups, dilations, data_format);
  convolve(ConvPass::output, conv, {out_grad.raw(), filter.raw(), x_grad.raw()});
  convolve(ConvPass::filter, conv, {out_grad.raw(), filter_grad.raw(), x.raw()});
}

}  // namespace

void register_conv() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    for (const char* name : {"conv2d", "depthwise_conv2d", "conv3d"})
      register_kernel(name, kBackend, dtype_of<T>, &conv);
    for (const char* name : {"conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad"})
      register_kernel(name, kBackend, dtype_of<T>, &conv_grad);
    for (const char* name : {"conv2d_transpose", "conv3d_transpose"})
      register_kernel(name, kBackend, dtype_of<T>, &conv_transpose);
    for (const char* name : {"conv2d_transpose_grad", "conv3d_transpose_grad"})
      register_kernel(name, kBackend, dtype_of<T>, &conv_transpose_grad);
  });
}

}  // namespace shard::cpu
