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

/// Which of the boxes of a call it is.
using BoxOf = const ShardBox& (*)(const CallBoxes&);

template <size_t i>
const ShardBox& input(const CallBoxes& boxes) {
  return boxes.inputs[i];
}
const ShardBox& result(const CallBoxes& boxes) { return boxes.outputs[0]; }

/// The windows of a call over the whole images of which the ranks may have parts, and what they read.
struct Reading {
  meta::Image image;
  meta::Windows windows;

  /// Of flat input `i`, which has images that windows read, what the outputs of a rank read.
  Fetched images_of(const OpContext& ctx, size_t i, const DenseTensor& images, BoxOf outputs) const {
    return ctx.fetch(i, images, [=, this](const CallBoxes& boxes) {
      return box_read(image, windows, boxes.inputs[i], outputs(boxes));
    });
  }
  /// Of flat input `i`, which has outputs of windows, those that read any of the images of a rank.
  Fetched outputs_of(const OpContext& ctx, size_t i, const DenseTensor& outputs, BoxOf images) const {
    return ctx.fetch(i, outputs, [=, this](const CallBoxes& boxes) {
      return box_reading(image, windows, boxes.inputs[i], images(boxes));
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

Reading reading_of(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter, const IntArray& strides,
                   const IntArray& paddings, const std::string& algorithm, const IntArray& dilations,
                   const std::string& data_format) {
  const meta::Image image = meta::image_of(ctx, data_format, images.dims().rank() - 2);
  return {image, meta::conv_windows(ctx, image, ctx.input_box(0, images).global, filter.dims(), strides, paddings,
                                    algorithm, dilations)};
}

ShardBox box_of(const Fetched& fetched) { return {fetched.begin, fetched.tensor.dims()}; }

void conv(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter, const IntArray& strides,
          const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int groups,
          const std::string& data_format, DenseTensor& out) {
  const Reading reading = reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format);
  const Fetched in = reading.images_of(ctx, 0, images, result);
  const meta::Windows windows = reading.part(box_of(in), {ctx.output_box(0, out).begin, out.dims()});
  convolve(ConvPass::output, convolution(in.tensor, filter, groups, reading.image, windows),
           {in.tensor.raw(), filter.raw(), out.raw()});
}

void conv_dry(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter, const IntArray& strides,
              const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int,
              const std::string& data_format, DenseTensor&) {
  reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format)
      .images_of(ctx, 0, images, result);
}

/// The pass from outputs to the part of the images at `begin`, which all `outputs` that read any of it are for. Where
/// strides skip elements, the first windows may begin after the part does: what is before them is 0.
void write_images(const Reading& reading, const Fetched& outputs, const DenseTensor& filter, int groups,
                  const Dims& begin, DenseTensor& images) {
  ShardBox read = {begin, images.dims()};
  for (int i = 0; i < reading.image.space && outputs.tensor.numel() > 0; ++i) {
    const int dim = reading.image.first() + i;
    const meta::Window& window = reading.windows[static_cast<size_t>(3 - reading.image.space + i)];
    const int64_t skipped = std::max<int64_t>(window.first(outputs.begin[dim]) - begin[dim], 0);
    read.begin[dim] += skipped;
    read.dims[dim] -= skipped;
  }
  DenseTensor part = images;
  if (!(read.dims == images.dims())) part = DenseTensor::allocate(kCpu, {read.dims, images.dtype()});
  convolve(ConvPass::input, convolution(part, filter, groups, reading.image, reading.part(read, box_of(outputs))),
           {part.raw(), filter.raw(), outputs.tensor.raw()});
  if (read.dims == images.dims()) return;
  std::memset(images.raw(), 0, images.meta().bytes());
  Dims to;
  for (int d = 0; d < begin.rank(); ++d) to.push_back(read.begin[d] - begin[d]);
  copy_box({images.data<char>(), images.dims(), to}, {part.data<char>(), read.dims, Dims::filled(begin.rank(), 0)},
           read.dims, size_of(part.dtype()));
}

void conv_grad(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter, const DenseTensor& out_grad,
               const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
               const IntArray& dilations, int groups, const std::string& data_format, DenseTensor& images_grad,
               DenseTensor& filter_grad) {
  const Reading reading = reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format);
  if (images_grad.defined())
    write_images(reading, reading.outputs_of(ctx, 2, out_grad, input<0>), filter, groups,
                 ctx.input_box(0, images).begin, images_grad);
  if (!filter_grad.defined()) return;
  const Fetched in = reading.images_of(ctx, 0, images, input<2>);
  const meta::Windows windows = reading.part(box_of(in), {ctx.input_box(2, out_grad).begin, out_grad.dims()});
  convolve(ConvPass::filter, convolution(in.tensor, filter, groups, reading.image, windows),
           {in.tensor.raw(), filter_grad.raw(), out_grad.raw()});
}

void conv_grad_dry(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter,
                   const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                   const std::string& algorithm, const IntArray& dilations, int, const std::string& data_format,
                   DenseTensor& images_grad, DenseTensor& filter_grad) {
  const Reading reading = reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format);
  if (images_grad.defined()) reading.outputs_of(ctx, 2, out_grad, input<0>);
  if (filter_grad.defined()) reading.images_of(ctx, 0, images, input<2>);
}

/// That of the convolution of images like the result, whose outputs are like x.
Reading transposed(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter, const IntArray& strides,
                   const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                   const std::string& algorithm, const IntArray& dilations, const std::string& data_format) {
  const meta::Image image = meta::transposed_image_of(ctx, data_format, x.dims().rank() - 2);
  return {image, meta::conv_transpose_windows(ctx, image, ctx.input_box(0, x).global, filter.dims(), strides, paddings,
                                              output_padding, output_size, algorithm, dilations)};
}

void conv_transpose(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter, const IntArray& strides,
                    const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                    const std::string& algorithm, int groups, const IntArray& dilations, const std::string& data_format,
                    DenseTensor& out) {
  const Reading reading =
      transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format);
  write_images(reading, reading.outputs_of(ctx, 0, x, result), filter, groups, ctx.output_box(0, out).begin, out);
}

void conv_transpose_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter, const IntArray& strides,
                        const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                        const std::string& algorithm, int, const IntArray& dilations, const std::string& data_format,
                        DenseTensor&) {
  transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format)
      .outputs_of(ctx, 0, x, result);
}

void conv_transpose_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                         const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                         const IntArray& output_padding, const IntArray& output_size, const std::string& algorithm,
                         int groups, const IntArray& dilations, const std::string& data_format, DenseTensor& x_grad,
                         DenseTensor& filter_grad) {
  const Reading reading =
      transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format);
  const Fetched grads = reading.images_of(ctx, 2, out_grad, input<0>);
  const Convolution conv = convolution(grads.tensor, filter, groups, reading.image,
                                       reading.part(box_of(grads), {ctx.input_box(0, x).begin, x.dims()}));
  if (x_grad.defined()) convolve(ConvPass::output, conv, {grads.tensor.raw(), filter.raw(), x_grad.raw()});
  if (filter_grad.defined()) convolve(ConvPass::filter, conv, {grads.tensor.raw(), filter_grad.raw(), x.raw()});
}

void conv_transpose_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                             const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                             const IntArray& output_padding, const IntArray& output_size, const std::string& algorithm,
                             int, const IntArray& dilations, const std::string& data_format, DenseTensor&,
                             DenseTensor&) {
  transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format)
      .images_of(ctx, 2, out_grad, input<0>);
}

}  // namespace

void register_conv() {
  const auto forward = {"conv2d", "depthwise_conv2d", "conv3d"};
  const auto backward = {"conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad"};
  const auto transpose = {"conv2d_transpose", "conv3d_transpose"};
  const auto transpose_grad = {"conv2d_transpose_grad", "conv3d_transpose_grad"};
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    for (const char* name : forward) register_kernel(name, kBackend, dtype_of<T>, &conv);
    for (const char* name : backward) register_kernel(name, kBackend, dtype_of<T>, &conv_grad);
    for (const char* name : transpose) register_kernel(name, kBackend, dtype_of<T>, &conv_transpose);
    for (const char* name : transpose_grad) register_kernel(name, kBackend, dtype_of<T>, &conv_transpose_grad);
  });
  for (const char* name : forward) register_dry_kernel(name, &conv_dry);
  for (const char* name : backward) register_dry_kernel(name, &conv_grad_dry);
  for (const char* name : transpose) register_dry_kernel(name, &conv_transpose_dry);
  for (const char* name : transpose_grad) register_dry_kernel(name, &conv_transpose_grad_dry);
}

}  // namespace shard::cpu
