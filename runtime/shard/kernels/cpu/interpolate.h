// The ops of interpolation but for their loops: what ranks fetch of each other, for the kernels of CPU and CUDA.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "shard/kernels/registry.h"
#include "shard/meta/image.h"

namespace shard::cpu {

/// The space dims of a box of images: depth, height and width.
inline std::array<Range, 3> space_of(const meta::Interpolation& how, const ShardBox& box) {
  std::array<Range, 3> ranges = {Range{0, 1}, Range{0, 1}, Range{0, 1}};
  const int space = box.dims.rank() - 2;
  for (int i = 0; i < space; ++i)
    ranges[static_cast<size_t>(3 - space + i)] = {box.begin[how.first() + i], box.dims[how.first() + i]};
  return ranges;
}

/// What the outputs of a rank read of x.
inline Fetched fetch_read(const OpContext& ctx, const meta::Interpolation& how, const meta::Samplings& samplings,
                          const DenseTensor& x) {
  return ctx.fetch(0, x,
                   [&](const CallBoxes& boxes) { return box_read(how, samplings, boxes.inputs[0], boxes.outputs[0]); });
}

/// The gradients of all outputs that read any of the shard of x. They are the last argument of the call.
inline Fetched fetch_grads(const OpContext& ctx, const meta::Interpolation& how, const meta::Samplings& samplings,
                           const DenseTensor& output_grad) {
  const size_t last = ctx.local == nullptr ? 0 : ctx.local->inputs.size() - 1;
  return ctx.fetch(last, output_grad, [&](const CallBoxes& boxes) {
    return box_reading(how, samplings, boxes.inputs.back(), boxes.outputs[0]);
  });
}

inline meta::Samplings samplings_of_grad(const OpContext& ctx, const meta::Interpolation& how,
                                         const DenseTensor& output_grad, const DenseTensor& x_grad) {
  const Dims& outputs = ctx.local == nullptr ? output_grad.dims() : ctx.local->inputs.back().global;
  return meta::samplings_of(how, ctx.output_box(0, x_grad).global, outputs);
}

/// The kernels of a backend. `Work` has the loops, which write a tensor that is not empty.
template <class Work>
struct InterpolateOps {
  static void interpolate(const OpContext& ctx, const DenseTensor& x, const std::string& data_format,
                          const std::vector<float>& scale, const std::string& method, bool align_corners,
                          int align_mode, DenseTensor& output) {
    const meta::Interpolation how{data_format, scale, method, align_corners, align_mode};
    const Box box = ctx.output_box(0, output);
    const meta::Samplings samplings = meta::samplings_of(how, ctx.input_box(0, x).global, box.global);
    const Fetched read = fetch_read(ctx, how, samplings, x);
    if (output.numel() != 0) Work::forward(ctx, how, samplings, read, {box.begin, output.dims()}, output);
  }

  static void interpolate_grad(const OpContext& ctx, const DenseTensor& output_grad, const std::string& data_format,
                               const std::vector<float>& scale, const std::string& method, bool align_corners,
                               int align_mode, DenseTensor& x_grad) {
    const meta::Interpolation how{data_format, scale, method, align_corners, align_mode};
    const meta::Samplings samplings = samplings_of_grad(ctx, how, output_grad, x_grad);
    const Fetched grads = fetch_grads(ctx, how, samplings, output_grad);
    if (x_grad.numel() == 0) return;
    Work::backward(ctx, how, samplings, grads, {ctx.output_box(0, x_grad).begin, x_grad.dims()}, x_grad);
  }

  static void register_for(int backend, DType dtype) {
    register_kernel("interpolate", backend, dtype, &interpolate);
    register_kernel("interpolate_grad", backend, dtype, &interpolate_grad);
  }
};

}  // namespace shard::cpu
