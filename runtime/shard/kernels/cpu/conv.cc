// CPU kernels of convolutions, transposed convolutions and their gradients.
#include "shard/kernels/cpu/conv.h"

#include <algorithm>
#include <cstring>

#include "shard/core/box_copy.h"
#include "shard/kernels/cpu/conv_ops.h"
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

/// What ConvOps needs of a backend.
struct Work {
  static void convolve(const OpContext&, ConvPass pass, const Convolution& conv, const DenseTensor& input,
                       const DenseTensor& filter, const DenseTensor& output) {
    cpu::convolve(pass, conv, {input.raw(), filter.raw(), output.raw()});
  }

  static void write_images(const OpContext&, const Reading& reading, const Fetched& outputs, const DenseTensor& filter,
                           int groups, const Dims& begin, DenseTensor& images) {
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
    cpu::convolve(ConvPass::input,
                  convolution(part, filter, groups, reading.image, reading.part(read, box_of(outputs))),
                  {part.raw(), filter.raw(), outputs.tensor.raw()});
    if (read.dims == images.dims()) return;
    std::memset(images.raw(), 0, images.meta().bytes());
    Dims to;
    for (int d = 0; d < begin.rank(); ++d) to.push_back(read.begin[d] - begin[d]);
    copy_box({images.data<char>(), images.dims(), to}, {part.data<char>(), read.dims, Dims::filled(begin.rank(), 0)},
             read.dims, size_of(part.dtype()));
  }
};

void conv_dry(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter, const IntArray& strides,
              const IntArray& paddings, const std::string& algorithm, const IntArray& dilations, int,
              const std::string& data_format, DenseTensor&) {
  reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format)
      .images_of(ctx, 0, images, result_box);
}

void conv_grad_dry(const OpContext& ctx, const DenseTensor& images, const DenseTensor& filter,
                   const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                   const std::string& algorithm, const IntArray& dilations, int, const std::string& data_format,
                   DenseTensor& images_grad, DenseTensor& filter_grad) {
  const Reading reading = reading_of(ctx, images, filter, strides, paddings, algorithm, dilations, data_format);
  if (images_grad.defined()) reading.outputs_of(ctx, 2, out_grad, input_box<0>);
  if (filter_grad.defined()) reading.images_of(ctx, 0, images, input_box<2>);
}

void conv_transpose_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter, const IntArray& strides,
                        const IntArray& paddings, const IntArray& output_padding, const IntArray& output_size,
                        const std::string& algorithm, int, const IntArray& dilations, const std::string& data_format,
                        DenseTensor&) {
  transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format)
      .outputs_of(ctx, 0, x, result_box);
}

void conv_transpose_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor& filter,
                             const DenseTensor& out_grad, const IntArray& strides, const IntArray& paddings,
                             const IntArray& output_padding, const IntArray& output_size, const std::string& algorithm,
                             int, const IntArray& dilations, const std::string& data_format, DenseTensor&,
                             DenseTensor&) {
  transposed(ctx, x, filter, strides, paddings, output_padding, output_size, algorithm, dilations, data_format)
      .images_of(ctx, 2, out_grad, input_box<0>);
}

}  // namespace

void register_conv() {
  const auto forward = {"conv2d", "depthwise_conv2d", "conv3d"};
  const auto backward = {"conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad"};
  const auto transpose = {"conv2d_transpose", "conv3d_transpose"};
  const auto transpose_grad = {"conv2d_transpose_grad", "conv3d_transpose_grad"};
  for_types(FloatTypes{}, []<class T>(TypeTag<T>) { ConvOps<Work>::register_for(kBackend, dtype_of<T>); });
  for (const char* name : forward) register_dry_kernel(name, &conv_dry);
  for (const char* name : backward) register_dry_kernel(name, &conv_grad_dry);
  for (const char* name : transpose) register_dry_kernel(name, &conv_transpose_dry);
  for (const char* name : transpose_grad) register_dry_kernel(name, &conv_transpose_grad_dry);
}

}  // namespace shard::cpu
