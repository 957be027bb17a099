// The ops of pooling but for their loops: windows, and what ranks fetch of each other, for the kernels of CPU and CUDA.
#pragma once

#include <algorithm>
#include <string>

#include "shard/kernels/cpu/fetched_box.h"
#include "shard/kernels/registry.h"
#include "shard/meta/window.h"

namespace shard::cpu {

/// The windows of a call over whole images [n, c, space..] or [n, space.., c], of which the ranks may have parts.
struct Pooled {
  meta::Image image;
  meta::Windows windows;
  bool exclusive;
};

inline Pooled pooled_of(const OpContext& ctx, const DenseTensor& x, const meta::Pooling& pooling, bool exclusive,
                        const std::string& data_format) {
  const meta::Image image = meta::image_of(ctx, data_format, x.dims().rank() - 2);
  return {image, meta::pool_windows(ctx, image, ctx.input_box(0, x).global, pooling), exclusive};
}

inline Pooled index_pooled(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size,
                           const IntArray& strides, const IntArray& paddings, bool global_pooling, bool adaptive) {
  const meta::Image image{x.dims().rank() - 2, false};
  const meta::Pooling pooling{kernel_size, strides, paddings, false, global_pooling, adaptive};
  return {image, meta::pool_windows(ctx, image, ctx.input_box(0, x).global, pooling), true};
}

inline Fetched shard_of(const OpContext& ctx, size_t i, const DenseTensor& tensor) {
  return {tensor, ctx.input_box(i, tensor).begin};
}

/// What the outputs of a rank read of flat input `i`.
inline Fetched fetch_read(const OpContext& ctx, const Pooled& pooled, size_t i, const DenseTensor& tensor) {
  return ctx.fetch(i, tensor, [&pooled, i](const CallBoxes& boxes) {
    return box_read(pooled.image, pooled.windows, boxes.inputs[i], boxes.outputs[0]);
  });
}

/// Of flat input `i`, which is like the results, those that read any of the shard of x.
inline ShardBox results_needed(const Pooled& pooled, size_t i, const CallBoxes& boxes) {
  return box_reading(pooled.image, pooled.windows, boxes.inputs[i], boxes.inputs[0]);
}
inline Fetched fetch_reading(const OpContext& ctx, const Pooled& pooled, size_t i, const DenseTensor& tensor) {
  return ctx.fetch(i, tensor, [&pooled, i](const CallBoxes& boxes) { return results_needed(pooled, i, boxes); });
}

/// The smallest box with the elements of both.
inline ShardBox around(const ShardBox& a, const ShardBox& b) {
  ShardBox box = a;
  for (int d = 0; d < a.dims.rank(); ++d) {
    if (b.dims[d] == 0) continue;
    const int64_t end = std::max(a.dims[d] == 0 ? 0 : a.begin[d] + a.dims[d], b.begin[d] + b.dims[d]);
    box.begin[d] = a.dims[d] == 0 ? b.begin[d] : std::min(a.begin[d], b.begin[d]);
    box.dims[d] = end - box.begin[d];
  }
  return box;
}

/// The shard of x, and all that the outputs read which read any of it.
inline Fetched fetch_compared(const OpContext& ctx, const Pooled& pooled, const DenseTensor& x) {
  return ctx.fetch(0, x, [&](const CallBoxes& boxes) {
    return around(boxes.inputs[0],
                  box_read(pooled.image, pooled.windows, boxes.inputs[0], results_needed(pooled, 1, boxes)));
  });
}

/// The images whose space dims are whole, for a box of outputs of images [n, c, space..].
inline ShardBox whole_images(const Pooled& pooled, ShardBox box) {
  for (int d = 0; d < pooled.image.space; ++d) {
    box.begin[2 + d] = 0;
    box.dims[2 + d] = pooled.windows[static_cast<size_t>(3 - pooled.image.space + d)].in;
  }
  return box;
}

/// The kernels of a backend. `Work` has the loops, which get tensors that are not empty.
template <class Work>
struct PoolOps {
  static void pool(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size, const IntArray& strides,
                   const IntArray& paddings, bool ceil_mode, bool exclusive, const std::string& data_format,
                   const std::string& pooling_type, bool global_pooling, bool adaptive,
                   const std::string& padding_algorithm, DenseTensor& out) {
    const Pooled pooled =
        pooled_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
                  exclusive, data_format);
    const Fetched read = fetch_read(ctx, pooled, 0, x);
    if (out.numel() == 0) return;  // of however many windows
    Work::forward(ctx, pooled, pooling_type == "max", read.tensor, read, result_box(ctx, out), out);
  }

  static void pool_double_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grad_x_grad,
                               const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings,
                               bool ceil_mode, bool exclusive, const std::string& data_format,
                               const std::string& pooling_type, bool global_pooling, bool adaptive,
                               const std::string& padding_algorithm, DenseTensor& grad_out_grad) {
    const Pooled pooled =
        pooled_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
                  exclusive, data_format);
    const bool max = pooling_type == "max";
    const Fetched compared = max ? fetch_read(ctx, pooled, 0, x) : shard_of(ctx, 0, x),
                  values = fetch_read(ctx, pooled, 1, grad_x_grad);
    if (grad_out_grad.numel() == 0) return;
    Work::forward(ctx, pooled, max, compared.tensor, values, result_box(ctx, grad_out_grad), grad_out_grad);
  }

  static void pool_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad,
                        const IntArray& kernel_size, const IntArray& strides, const IntArray& paddings, bool ceil_mode,
                        bool exclusive, const std::string& data_format, const std::string& pooling_type,
                        bool global_pooling, bool adaptive, const std::string& padding_algorithm, DenseTensor& x_grad) {
    const Pooled pooled =
        pooled_of(ctx, x, {kernel_size, strides, paddings, ceil_mode, global_pooling, adaptive, padding_algorithm},
                  exclusive, data_format);
    const bool max = pooling_type == "max";
    const Fetched grads = fetch_reading(ctx, pooled, 1, out_grad), shard = shard_of(ctx, 0, x),
                  compared = max ? fetch_compared(ctx, pooled, x) : shard;
    if (x_grad.numel() == 0) return;
    Dims begin;  // of x_grad in what is compared
    for (int d = 0; d < x.dims().rank(); ++d) begin.push_back(shard.begin[d] - compared.begin[d]);
    Work::backward(ctx, pooled, max, compared, grads, begin, x_grad);
  }

  static void max_pool_with_index(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_size,
                                  const IntArray& strides, const IntArray& paddings, bool global_pooling, bool adaptive,
                                  DenseTensor& out, DenseTensor& mask) {
    const Pooled pooled = index_pooled(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
    const Fetched read = fetch_read(ctx, pooled, 0, x);
    if (out.numel() != 0) Work::with_index(ctx, pooled, read, result_box(ctx, out), out, mask);
  }

  static void max_pool_with_index_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mask,
                                       const DenseTensor& out_grad, const IntArray& kernel_size,
                                       const IntArray& strides, const IntArray& paddings, bool global_pooling,
                                       bool adaptive, DenseTensor& x_grad) {
    const Pooled pooled = index_pooled(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
    if (mask.numel() != 0) Work::check_places(ctx, pooled, mask);
    const Fetched places = fetch_reading(ctx, pooled, 1, mask), grads = fetch_reading(ctx, pooled, 2, out_grad);
    if (x_grad.numel() == 0) return;
    Work::index_backward(ctx, pooled, {ctx.input_box(0, x).begin, x.dims()}, places.tensor, grads, x_grad);
  }

  static void max_pool_with_index_double_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mask,
                                              const DenseTensor& grad_x_grad, const IntArray& kernel_size,
                                              const IntArray& strides, const IntArray& paddings, bool global_pooling,
                                              bool adaptive, DenseTensor& grad_out_grad) {
    const Pooled pooled = index_pooled(ctx, x, kernel_size, strides, paddings, global_pooling, adaptive);
    if (mask.numel() != 0) Work::check_places(ctx, pooled, mask);
    const Fetched values = fetch_read(ctx, pooled, 2, grad_x_grad);
    if (grad_out_grad.numel() == 0) return;
    Work::index_double(ctx, pooled, mask, values, result_box(ctx, grad_out_grad), grad_out_grad);
  }

  static void register_for(int backend, DType dtype) {
    for (const char* name : {"pool2d", "pool3d"}) register_kernel(name, backend, dtype, &pool);
    for (const char* name : {"pool2d_grad", "pool3d_grad"}) register_kernel(name, backend, dtype, &pool_grad);
    for (const char* name : {"max_pool2d_with_index", "max_pool3d_with_index"})
      register_kernel(name, backend, dtype, &max_pool_with_index);
    for (const char* name : {"max_pool2d_with_index_grad", "max_pool3d_with_index_grad"})
      register_kernel(name, backend, dtype, &max_pool_with_index_grad);
    for (const char* name : {"pool2d_double_grad", "pool3d_double_grad"})
      register_kernel(name, backend, dtype, &pool_double_grad);
    for (const char* name : {"max_pool2d_with_index_double_grad", "max_pool3d_with_index_double_grad"})
      register_kernel(name, backend, dtype, &max_pool_with_index_double_grad);
  }

 private:
  static ShardBox result_box(const OpContext& ctx, const DenseTensor& result) {
    return {ctx.output_box(0, result).begin, result.dims()};
  }
};

}  // namespace shard::cpu
