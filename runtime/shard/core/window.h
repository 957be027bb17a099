// The positions of a kernel that slides over an image, for infer_meta functions and kernels of unfold and fold.
#pragma once

#include <cstdint>

#include "shard/core/dims.h"

namespace shard {

/// One dim of the image.
struct Window {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t before = 0;  // padding
  int64_t after = 0;
  int64_t dilation = 1;

  /// How often the kernel fits along `size` elements; 0 or less where it does not.
  int64_t positions(int64_t size) const {
    const int64_t room = size + before + after - (dilation * (kernel - 1) + 1);
    return room < 0 ? 0 : room / stride + 1;
  }
  /// The element of the image below element `at` of the kernel in that position; it may be in the padding.
  int64_t element(int64_t position, int64_t at) const { return position * stride - before + at * dilation; }
};

/// `dim` is 0 for the height and 1 for the width; paddings are top, left, bottom and right.
inline Window window_of(size_t dim, const IntArray& kernel_sizes, const IntArray& strides, const IntArray& paddings,
                        const IntArray& dilations) {
  return {kernel_sizes[dim], strides[dim], paddings[dim], paddings[dim + 2], dilations[dim]};
}

}  // namespace shard
