#include "shard/kernels/cuda/pool_cudnn.h"

#include <array>
#include <limits>
#include <optional>

#include "shard/kernels/cuda/cudnn_call.cuh"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // see cudnn_library.cuh

namespace shard::cuda {
namespace {

using cpu::Pooled;
using meta::Window;

struct PoolShape {
  cudnnPoolingMode_t mode;
  DType dtype;
  bool channels_last;
  int space;
  std::array<int, 5> images, outputs;  // batch, channels, and the space dims
  std::array<int, 3> sizes, before, strides;

  auto operator<=>(const PoolShape&) const = default;
};

cudnnPoolingMode_t mode_of(const Pooled& pooled) {
  return pooled.exclusive ? CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING : CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
}

/// Nullopt where cuDNN cannot describe the pooling.
std::optional<PoolShape> shape_of(const Pooled& pooled, DType dtype, const ShardBox& images, const ShardBox& outputs) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const meta::Image& image = pooled.image;
  if (images.dims.numel() > kMost || outputs.dims.numel() > kMost) return std::nullopt;
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  PoolShape shape{mode_of(pooled), dtype, image.channels_last, image.space, {}, {}, {}, {}, {}};
  shape.images = {number(images.dims[0]), number(images.dims[image.channel()])};
  shape.outputs = {number(outputs.dims[0]), number(outputs.dims[image.channel()])};
  for (size_t i = 0; i < static_cast<size_t>(image.space); ++i) {
    const int dim = image.first() + static_cast<int>(i);
    const Window& window = pooled.windows[3 - static_cast<size_t>(image.space) + i];
    const bool is_whole = images.begin[dim] == 0 && images.dims[dim] == window.in && outputs.begin[dim] == 0 &&
                          outputs.dims[dim] == window.out;
    // At least one element in each window, and as many windows as cuDNN makes of these numbers.
    const bool is_plain = window.size > 0 && window.dilation == 1 && window.before == window.after &&
                          window.before >= 0 && window.before < window.size &&
                          (window.in + 2 * window.before - window.size) / window.stride + 1 == window.out;
    if (!is_whole || !is_plain || window.stride > kMost || window.size > kMost) return std::nullopt;
    shape.images[2 + i] = number(window.in);
    shape.outputs[2 + i] = number(window.out);
    shape.sizes[i] = number(window.size);
    shape.before[i] = number(window.before);
    shape.strides[i] = number(window.stride);
  }
  return shape;
}

struct PoolPlan {
  CudnnOwned<cudnnTensorDescriptor_t> images, outputs;
  CudnnOwned<cudnnPoolingDescriptor_t> pooling;
};

std::optional<PoolPlan> make_plan(const Cudnn& cudnn, const PoolShape& shape) {
  const CudnnLibrary& library = cudnn.library();
  const int dims = shape.space + 2;
  PoolPlan plan{make_image(library, shape.dtype, shape.channels_last, dims, shape.images.data()),
                make_image(library, shape.dtype, shape.channels_last, dims, shape.outputs.data()),
                make_cudnn<cudnnPoolingDescriptor_t>(library, library.create_pooling, "cudnnCreatePoolingDescriptor")};
  check(library.set_pooling(plan.pooling.get(), shape.mode, CUDNN_PROPAGATE_NAN, shape.space, shape.sizes.data(),
                            shape.before.data(), shape.strides.data()),
        "cudnnSetPoolingNdDescriptor");
  return plan;
}

/// Calls run(cudnn, plan), which returns a status, if cuDNN has such a pooling.
template <class Run>
bool pool_by(const Pooled& pooled, const DenseTensor& result, const ShardBox& images, const ShardBox& outputs,
             const Run& run) {
  if (size_of(result.dtype()) == 2) return false;
  Cudnn* const cudnn = Cudnn::of(result.device().index);
  if (cudnn == nullptr) return false;
  const std::optional<PoolShape> shape = shape_of(pooled, result.dtype(), images, outputs);
  if (!shape) return false;
  std::optional<PoolPlan>& plan = cudnn->plan(*shape, make_plan);
  if (!plan) return false;
  return is_done(run(*cudnn, *plan), plan, "a pooling of cuDNN");
}

}  // namespace

bool mean_pool_by_cudnn(const Pooled& pooled, const DenseTensor& x, const ShardBox& images, const ShardBox& outputs,
                        const DenseTensor& out) {
  if (!is_aligned(x) || !is_aligned(out)) return false;
  return pool_by(pooled, out, images, outputs, [&](const Cudnn& cudnn, const PoolPlan& plan) {
    const Scaling scaling(out.dtype());
    return cudnn.library().pool(cudnn.handle(), plan.pooling.get(), scaling.alpha(), plan.images.get(), x.raw(),
                                scaling.beta(), plan.outputs.get(), out.raw());
  });
}

bool mean_pool_grad_by_cudnn(const Pooled& pooled, const DenseTensor& x, const ShardBox& images,
                             const DenseTensor& out_grad, const ShardBox& outputs, const DenseTensor& x_grad) {
  if (!is_aligned(x) || !is_aligned(out_grad) || !is_aligned(x_grad)) return false;
  return pool_by(pooled, x_grad, images, outputs, [&](const Cudnn& cudnn, const PoolPlan& plan) {
    const Scaling scaling(x_grad.dtype());
    // It wants results too, which means do not depend on: any tensor of their shape will do.
    return cudnn.library().pool_backward(cudnn.handle(), plan.pooling.get(), scaling.alpha(), plan.outputs.get(),
                                         out_grad.raw(), plan.outputs.get(), out_grad.raw(), plan.images.get(), x.raw(),
                                         scaling.beta(), plan.images.get(), x_grad.raw());
  });
}

}  // namespace shard::cuda
