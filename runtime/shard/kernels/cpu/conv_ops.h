// The ops of convolution but for their sums: windows, and what ranks fetch of each other, for the kernels of CPU and CUDA.
#pragma once

#include <string>

#include "shard/kernels/cpu/conv.h"
#include "shard/kernels/cpu/fetched_box.h"
#include "shard/kernels/registry.h"

namespace shard::cpu {

/// Of images `input` with the filter [.., of each group, kernel..]. Local shards may hold some of the groups: there are
/// as many as the channels make.
inline Convolution convolution(const DenseTensor& input, const DenseTensor& filter, int groups,
                               const meta::Image& image, const meta::Windows& windows) {
  const int64_t in = input.dims()[image.channel()], each = filter.dims()[1];
  return {input.dtype(), input.dims()[0], in, filter.dims()[0], groups == 1 || each == 0 ? 1 : in / each,
          image,         windows};
}

/// Which of the boxes of a call it is.
using BoxOf = const ShardBox& (*)(const CallBoxes&);

template <size_t i>
const ShardBox& input_box(const CallBoxes& boxes) {
  return boxes.inputs[i];
}
inline const ShardBox& result_box(const CallBoxes& boxes) { return boxes.outputs[0]; }

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

inline Reading reading_of(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter,
                          const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
                          const IntArray& dilations, const std::string& data_format) {
  const meta::Image image = meta::image_of(ctx, data_format, images.dims().rank() - 2);
  return {image, meta::conv_windows(ctx, image, ctx.input_box(0, images).global, filter.dims(), strides, paddings,
                                    algorithm, dilations)};
}

/// That of the convolution of images like the result, whose outputs are like x.
inline Reading transposed(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                          const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                          const IntArray& output_size, const std::string& algorithm, const IntArray& dilations,
                          const std::string& data_format) {
  const meta::Image image = meta::transposed_image_of(ctx, data_format, x.dims().rank() - 2);
  return {image, meta::conv_transpose_windows(ctx, image, ctx.input_box(0, x).global, filter.dims(), strides, paddings,
                                              output_padding, output_size, algorithm, dilations)};
}

/// The kernels of a backend. `Work` has the sums:
/// convolve(ctx, pass, convolution, input, filter, output) as in conv.h, and
/// write_images(ctx, reading, outputs, filter, groups, begin, images): the pass from outputs to the part of the images at
/// `begin`, which all `outputs` that read any of it are for. Where strides skip elements, the first windows may begin after
/// the part does: what is before them is 0.
template <class Work>
struct ConvOps {
  static void conv(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter, const IntArray& strides,
                   const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int groups,
                   const std::string& data_format, DenseTensor& out) {
    const Reading reading = reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format);
    const Fetched in = reading.images_of(ctx, 0, images, result_box);
    const meta::Windows windows = reading.part(box_of(in), {ctx.output_box(0, out).begin, out.dims()});
    Work::convolve(ctx, ConvPass::output, convolution(in.tensor, filter, groups, reading.image, windows), in.tensor,
                   filter, out);
  }

  static void conv_grad(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter,
                        const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                        const std::string& algorithm, const IntArray& dilations, int groups,
                        const std::string& data_format, DenseTensor& images_grad, DenseTensor& filter_grad) {
    const Reading reading = reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format);
    if (images_grad.defined())
      Work::write_images(ctx, reading, reading.outputs_of(ctx, 2, out_grad, input_box<0>), filter, groups,
                         ctx.input_box(0, images).begin, images_grad);
    if (!filter_grad.defined()) return;
    const Fetched in = reading.images_of(ctx, 0, images, input_box<2>);
    const meta::Windows windows = reading.part(box_of(in), {ctx.input_box(2, out_grad).begin, out_grad.dims()});
    Work::convolve(ctx, ConvPass::filter, convolution(in.tensor, filter, groups, reading.image, windows), in.tensor,
                   filter_grad, out_grad);
  }

  static void conv_transpose(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                             const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                             const IntArray& output_size, const std::string& algorithm, int groups,
                             const IntArray& dilations, const std::string& data_format, DenseTensor& out) {
    const Reading reading =
        transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format);
    Work::write_images(ctx, reading, reading.outputs_of(ctx, 0, x, result_box), filter, groups,
                       ctx.output_box(0, out).begin, out);
  }

  static void conv_transpose_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                                  const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                                  const IntArray& output_padding, const IntArray& output_size,
                                  const std::string& algorithm, int groups, const IntArray& dilations,
                                  const std::string& data_format, DenseTensor& x_grad, DenseTensor& filter_grad) {
    const Reading reading =
        transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format);
    const Fetched grads = reading.images_of(ctx, 2, out_grad, input_box<0>);
    const Convolution conv = convolution(grads.tensor, filter, groups, reading.image,
                                         reading.part(box_of(grads), {ctx.input_box(0, x).begin, x.dims()}));
    if (x_grad.defined()) Work::convolve(ctx, ConvPass::output, conv, grads.tensor, filter, x_grad);
    if (filter_grad.defined()) Work::convolve(ctx, ConvPass::filter, conv, grads.tensor, filter_grad, x);
  }

  static void register_for(int backend, DType dtype) {
    for (const char* name : {"conv2d", "depthwise_conv2d", "conv3d"}) register_kernel(name, backend, dtype, &conv);
    for (const char* name : {"conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad"})
      register_kernel(name, backend, dtype, &conv_grad);
    for (const char* name : {"conv2d_transpose", "conv3d_transpose"})
      register_kernel(name, backend, dtype, &conv_transpose);
    for (const char* name : {"conv2d_transpose_grad", "conv3d_transpose_grad"})
      register_kernel(name, backend, dtype, &conv_transpose_grad);
  }
};

}  // namespace shard::cpu
