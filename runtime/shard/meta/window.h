// The windows of convolutions and pooling: what an output reads in each space dim. For infer_meta functions and kernels.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "shard/core/op_context.h"

namespace shard::meta {

/// One space dim: output o reads the elements o * stride - before + i * dilation of 0 <= i < size.
struct Window {
  int64_t in = 1, size = 1, stride = 1, before = 0, after = 0, dilation = 1, out = 1;
  int64_t reach() const { return (size - 1) * dilation + 1; }
  /// The first element that output `o` reads, which may be in the padding. Not for adaptive windows.
  int64_t first(int64_t o) const { return o * stride - before; }
  /// The element that output `o` reads below element `at` of the filter; it may be in the padding.
  int64_t element(int64_t o, int64_t at) const { return first(o) + at * dilation; }
};
/// Of depth, height and width; depth is a dim of 1 for images without one.
using Windows = std::array<Window, 3>;

/// The space dims of images [n, c, space..] or [n, space.., c]: three for the letters NCDHW, or two.
struct Image {
  int space = 2;
  bool channels_last = false;
  int channel() const { return channels_last ? space + 1 : 1; }
  int first() const { return channels_last ? 1 : 2; }
};
/// From a data_format such as NHWC, for tensors with `space` space dims; throws invalid_argument.
Image image_of(const OpContext& ctx, const std::string& data_format, int space);
/// As image_of, for the transposes of convolutions: three space dims, too, may have the names of two, as PaddlePaddle's
/// conv3d_transpose has by default.
Image transposed_image_of(const OpContext& ctx, const std::string& data_format, int space);
/// Throws shape_mismatch unless `x` has the dims of such an image.
void check_image(const OpContext& ctx, std::string_view name, const Meta& x, const Image& image);

/// The windows of a convolution of `input` with `filter` [.., .., kernel..]. Throws invalid_argument for attributes
/// that are no lists of as many positive numbers, shape_mismatch for an image that is smaller than a window.
Windows conv_windows(const OpContext& ctx, const Image& image, const Dims& input, const Dims& filter,
                     const IntArray& strides, const IntArray& paddings, const std::string& algorithm,
                     const IntArray& dilations);
/// Those of the convolution whose transpose conv2d_transpose of `x` is: `out` of each is a dim of x, and `in` one of
/// the result.
Windows conv_transpose_windows(const OpContext& ctx, const Image& image, const Dims& x, const Dims& filter,
                               const IntArray& strides, const IntArray& paddings, const IntArray& output_padding,
                               const IntArray& output_size, const std::string& algorithm, const IntArray& dilations);

/// The windows of unfold and fold over images of this height and width, which `out` of is 0 where one is smaller than the
/// window. Paddings are top, left, bottom and right.
Windows unfold_windows(int64_t height, int64_t width, const IntArray& kernel_sizes, const IntArray& strides,
                       const IntArray& paddings, const IntArray& dilations);

/// The attributes of a pooling op.
struct Pooling {
  const IntArray &kernel_size, &strides, &paddings;
  bool ceil_mode = false, global_pooling = false, adaptive = false;
  std::string algorithm = "EXPLICIT";
};
/// Windows of size 0 are adaptive: they divide the dim. Throws as conv_windows, and invalid_argument for a window
/// that would hold no element of x.
Windows pool_windows(const OpContext& ctx, const Image& image, const Dims& x, const Pooling& pooling);

/// The elements of a dim from the first to the last that the outputs of a range read, and the outputs that read elements
/// of a range. Both are empty where there are none.
Range elements_read(const Window& window, Range outputs);
Range outputs_reading(const Window& window, Range elements);
/// The same for boxes: the dims of `box` that are no space dims are kept.
ShardBox box_read(const Image& image, const Windows& windows, ShardBox box, const ShardBox& outputs);
ShardBox box_reading(const Image& image, const Windows& windows, ShardBox box, const ShardBox& elements);
/// The windows of these outputs alone, where an image has these elements alone: they are all that the outputs read, from
/// the first to the last, or more before the first output reads anything. Not for adaptive windows.
Window part_of(const Window& window, Range elements, Range outputs);

/// The shape of an image with `channels` channels and the outputs of the windows.
Dims image_dims(const Image& image, int64_t batch, int64_t channels, const Windows& windows, int64_t Window::*size);

}  // namespace shard::meta
