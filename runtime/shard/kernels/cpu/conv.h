// Convolutions of images and their gradients: the three products of images, filter and results.
#pragma once

#include "shard/core/dtype.h"
#include "shard/meta/window.h"

namespace shard::cpu {

/// A convolution of images with `in` channels into images with `out` channels. The filter is
/// [out, in / groups, kernel..].
struct Convolution {
  DType dtype = DType::float32;
  int64_t batch = 0, in = 0, out = 0, groups = 1;
  meta::Image image;
  meta::Windows windows;

  int64_t in_places() const { return windows[0].in * windows[1].in * windows[2].in; }
  int64_t out_places() const { return windows[0].out * windows[1].out * windows[2].out; }
  int64_t kernel_places() const { return windows[0].size * windows[1].size * windows[2].size; }
  int64_t filter_numel() const { return groups == 0 ? 0 : out * (in / groups) * kernel_places(); }
};

/// Which of the tensors is computed from the other two.
enum class ConvPass { output, input, filter };

/// The elements of the input, the filter and the output, contiguous.
struct ConvTensors {
  void *input, *filter, *output;
};

/// One pass, by the fastest way for its dtype. Sums are in the dtype of sums, and each is rounded once. The result does
/// not depend on the number of threads.
void convolve(ConvPass pass, const Convolution& conv, const ConvTensors& tensors);

/// The same for every float dtype, by products of matrices of the elements that windows read (im2col).
void convolve_by_products(ConvPass pass, const Convolution& conv, const ConvTensors& tensors);

/// The same by oneDNN, for float32 or bfloat16; false, with nothing written, where it has no code for this convolution.
/// No dim may be 0.
bool convolve_by_onednn(ConvPass pass, const Convolution& conv, const ConvTensors& tensors);

}  // namespace shard::cpu
