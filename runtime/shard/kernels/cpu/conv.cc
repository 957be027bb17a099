// CPU kernels of convolutions, transposed convolutions and their gradients.
#include "shard/kernels/cpu/conv.h"

#include <algorithm>
#include <cstring>

#include "shard/core/box_copy.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"

namespace shard::cpu {

void convolve(ConvPass pass, const Convolution& conv, const ConvTensors& tensors) {
  const bool empty =
      conv.batch == 0 || conv.in == 0 || conv.out == 0 || conv.in_places() == 0 || conv.out_places() == 0;
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

/// The windows of a call over the whole images of which the ranks may have parts, and what they read.
struct Reading {
  meta::Image image;
  meta::Windows windows;

  /// What the outputs of a rank read of its input; `out` is a result of the call, or its argument `out_grad`.
  Fetched input_of(const OpContext& ctx, const DenseTensor& input, bool forward) const {
    return ctx.fetch(0, input, [this, forward](const CallBoxes& boxes) {
      return box_read(image, windows, boxes.inputs[0], forward ? boxes.outputs[0] : boxes.inputs[2]);
    });
  }
  /// What was computed from the part of the input that a rank has.
  Fetched grads_of(const OpContext& ctx, const DenseTensor& out_grad) const {
    return ctx.fetch(2, out_grad, [this](const CallBoxes& boxes) {
      return box_reading(image, windows, boxes.inputs[2], boxes.inputs[0]);
    });
  }
  /// The windows of a part of the outputs over a part of the images.
  meta::Windows part(const ShardBox& in, const ShardBox& out) const {
    meta::Windows parts = windows;
    for (int i = 0; i < image.space; ++i) {
      const int dim = image.first() + i;
      meta::Window& window = parts[static_cast<size_t>(3 - image.space + i)];
      window = part_of(window, {in.begin[dim], in.dims[dim]}, {out.begin[dim], out.dims[dim]});
    }
    return parts;
  }
};

Reading reading_of(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter, const IntArray& strides,
                   const IntArray& paddings, const std::string& algorithm, const IntArray& dilations,
                   const std::string& data_format) {
  const meta::Image image = meta::image_of(ctx, data_format, input.dims().rank() - 2);
  return {image, meta::conv_windows(ctx, image, ctx.input_box(0, input).global, filter.dims(), strides, paddings,
                                    algorithm, dilations)};
}

ShardBox box_of(const Fetched& fetched) { return {fetched.begin, fetched.tensor.dims()}; }

void conv(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter, const IntArray& strides,
          const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int groups,
          const std::string& data_format, DenseTensor& out) {
  const Reading reading = reading_of(ctx, input, filter, strides, paddings, algorithm, dilations, data_format);
  const Fetched in = reading.input_of(ctx, input, true);
  const meta::Windows windows = reading.part(box_of(in), {ctx.output_box(0, out).begin, out.dims()});
  convolve(ConvPass::output, convolution(in.tensor, filter, groups, reading.image, windows),
           {in.tensor.raw(), filter.raw(), out.raw()});
}

void conv_dry(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter, const IntArray& strides,
              const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int,
              const std::string& data_format, DenseTensor&) {
  reading_of(ctx, input, filter, strides, paddings, algorithm, dilations, data_format).input_of(ctx, input, true);
}

/// The gradient of the part of the input at `begin`, from the gradients of all outputs that read any of it. Where strides
/// skip elements, the first windows may begin after the part does: what is before them is 0.
void write_input_grad(const Reading& reading, const Fetched& grads, const DenseTensor& filter, int groups,
                      const Dims& begin, DenseTensor& input_grad) {
  ShardBox read = {begin, input_grad.dims()};
  for (int i = 0; i < reading.image.space && grads.tensor.numel() > 0; ++i) {
    const int dim = reading.image.first() + i;
    const meta::Window& window = reading.windows[static_cast<size_t>(3 - reading.image.space + i)];
    const int64_t skipped = std::max<int64_t>(window.first(grads.begin[dim]) - begin[dim], 0);
    read.begin[dim] += skipped;
    read.dims[dim] -= skipped;
  }
  DenseTensor part = input_grad;
  if (!(read.dims == input_grad.dims())) part = DenseTensor::allocate(kCpu, {read.dims, input_grad.dtype()});
  convolve(ConvPass::input, convolution(part, filter, groups, reading.image, reading.part(read, box_of(grads))),
           {part.raw(), filter.raw(), grads.tensor.raw()});
  if (read.dims == input_grad.dims()) return;
  std::memset(input_grad.raw(), 0, input_grad.meta().bytes());
  Dims to;
  for (int d = 0; d < begin.rank(); ++d) to.push_back(read.begin[d] - begin[d]);
  copy_box({input_grad.data<char>(), input_grad.dims(), to},
           {part.data<char>(), read.dims, Dims::filled(begin.rank(), 0)}, read.dims, size_of(part.dtype()));
}

void conv_grad(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter, const DenseTensor& out_grad,
               const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
               const IntArray& dilations, int groups, const std::string& data_format, DenseTensor& input_grad,
               DenseTensor& filter_grad) {
  const Reading reading = reading_of(ctx, input, filter, strides, paddings, algorithm, dilations, data_format);
  if (input_grad.defined())
    write_input_grad(reading, reading.grads_of(ctx, out_grad), filter, groups, ctx.input_box(0, input).begin,
                     input_grad);
  if (!filter_grad.defined()) return;
  const Fetched in = reading.input_of(ctx, input, false);
  const meta::Windows windows = reading.part(box_of(in), {ctx.input_box(2, out_grad).begin, out_grad.dims()});
  convolve(ConvPass::filter, convolution(in.tensor, filter, groups, reading.image, windows),
           {in.tensor.raw(), filter_grad.raw(), out_grad.raw()});
}

void conv_grad_dry(const OpContext& ctx, const DenseTensor& input, const DenseTensor& filter,
                   const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                   const std::string& algorithm, const IntArray& dilations, int, const std::string& data_format,
                   DenseTensor& input_grad, DenseTensor& filter_grad) {
  const Reading reading = reading_of(ctx, input, filter, strides, paddings, algorithm, dilations, data_format);
  if (input_grad.defined()) reading.grads_of(ctx, out_grad);
  if (filter_grad.defined()) reading.input_of(ctx, input, false);
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
  if (x_grad.defined()) convolve(ConvPass::output, conv, {out_grad.raw(), filter.raw(), x_grad.raw()});
  if (filter_grad.defined()) convolve(ConvPass::filter, conv, {out_grad.raw(), filter_grad.raw(), x.raw()});
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
  for (const char* name : {"conv2d", "depthwise_conv2d", "conv3d"}) register_dry_kernel(name, &conv_dry);
  for (const char* name : {"conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad"})
    register_dry_kernel(name, &conv_grad_dry);
}

}  // namespace shard::cpu
