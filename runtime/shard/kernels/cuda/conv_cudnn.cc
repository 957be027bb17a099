#include "shard/kernels/cuda/conv_cudnn.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "shard/core/algorithm_policy.h"
#include "shard/kernels/cuda/cudnn_call.cuh"
#include "shard/kernels/cuda/strided_copy.cuh"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // see cudnn_library.cuh

namespace shard::cuda {
namespace {

using cpu::Convolution;
using cpu::ConvPass;
using meta::Window;

/// Algorithms that need more scratch memory are not used.
constexpr size_t kMostWorkspace = size_t{1} << 30;

/// The sizes that cuDNN takes: of batch or rows, channels, and the space dims.
using Sizes = std::array<int, 5>;

/// A convolution as far as algorithms depend on it.
struct Shape {
  ConvPass pass;
  AlgorithmPolicy algorithms;
  DType dtype;
  bool channels_last;
  int dims, groups;
  Sizes input{}, filter{}, output{}, before{}, strides{}, dilations{};

  auto operator<=>(const Shape&) const = default;
};

/// Nullopt where cuDNN cannot describe the convolution.
std::optional<Shape> shape_of(ConvPass pass, const Convolution& conv) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (conv.batch * conv.in * conv.in_places() > kMost || conv.batch * conv.out * conv.out_places() > kMost ||
      conv.filter_numel() > kMost)
    return std::nullopt;
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  Shape shape{
      pass, algorithm_policy(), conv.dtype, conv.image.channels_last, conv.image.space + 2, number(conv.groups)};
  const auto set = [&](Sizes& sizes, int64_t first, int64_t second, int64_t Window::*size) {
    sizes = {number(first), number(second)};
    for (size_t i = 0; i < static_cast<size_t>(conv.image.space); ++i)
      sizes[2 + i] = number(conv.windows[3 - static_cast<size_t>(conv.image.space) + i].*size);
  };
  set(shape.input, conv.batch, conv.in, &Window::in);
  set(shape.filter, conv.out, conv.in / conv.groups, &Window::size);
  set(shape.output, conv.batch, conv.out, &Window::out);
  for (size_t i = 0; i < static_cast<size_t>(conv.image.space); ++i) {
    const Window& window = conv.windows[3 - static_cast<size_t>(conv.image.space) + i];
    const int64_t padded = window.in + 2 * window.before - window.reach();
    if (window.before < 0 || padded < 0 || padded / window.stride + 1 != window.out) return std::nullopt;
    shape.before[i] = number(window.before);
    shape.strides[i] = number(window.stride);
    shape.dilations[i] = number(window.dilation);
  }
  return shape;
}

/// The descriptors of a convolution, and its algorithm.
struct Plan {
  CudnnOwned<cudnnTensorDescriptor_t> input, output;
  CudnnOwned<cudnnFilterDescriptor_t> filter;
  CudnnOwned<cudnnConvolutionDescriptor_t> convolution;
  std::optional<int> algorithm = {};
  size_t workspace = 0;
};

/// Takes the first algorithm, that is the fastest as cuDNN estimates, which fits, gives the same result in each run unless the policy
/// allows others, and does not round floats to fewer bits. Its math type belongs to it.
template <class Found>
void choose(const CudnnLibrary& library, Plan& plan, const Shape& shape, cudnnStatus_t status, const Found* begin,
            int count) {
  check(status, "the search for an algorithm of cuDNN");
  const Found* const end = begin + count;
  const Found* const best = std::find_if(begin, end, [&](const Found& each) {
    return each.status == CUDNN_STATUS_SUCCESS && each.memory <= kMostWorkspace &&
           (each.determinism == CUDNN_DETERMINISTIC || shape.algorithms == AlgorithmPolicy::fastest) &&
           (shape.dtype != DType::float32 || each.mathType == CUDNN_FMA_MATH);
  });
  if (best == end) return;
  check(library.set_math_type(plan.convolution.get(), best->mathType), "cudnnSetConvolutionMathType");
  plan.algorithm = static_cast<int>(best->algo);
  plan.workspace = best->memory;
}

/// Absent where no algorithm fits.
std::optional<Plan> make_plan(const Cudnn& cudnn, const Shape& shape) {
  const CudnnLibrary& library = cudnn.library();
  const cudnnHandle_t handle = cudnn.handle();
  Plan plan{make_image(library, shape.dtype, shape.channels_last, shape.dims, shape.input.data()),
            make_image(library, shape.dtype, shape.channels_last, shape.dims, shape.output.data()),
            make_cudnn<cudnnFilterDescriptor_t>(library, library.create_filter, "cudnnCreateFilterDescriptor"),
            make_cudnn<cudnnConvolutionDescriptor_t>(library, library.create_convolution,
                                                     "cudnnCreateConvolutionDescriptor")};
  check(library.set_filter(plan.filter.get(), cudnn_type(shape.dtype), image_format(shape.channels_last), shape.dims,
                           shape.filter.data()),
        "cudnnSetFilterNdDescriptor");
  const bool is_double = shape.dtype == DType::float64;
  check(library.set_convolution(plan.convolution.get(), shape.dims - 2, shape.before.data(), shape.strides.data(),
                                shape.dilations.data(), CUDNN_CROSS_CORRELATION,
                                is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
        "cudnnSetConvolutionNdDescriptor");
  check(library.set_groups(plan.convolution.get(), shape.groups), "cudnnSetConvolutionGroupCount");
  const bool is_half = size_of(shape.dtype) == 2;
  check(library.set_math_type(plan.convolution.get(), is_half ? CUDNN_TENSOR_OP_MATH : CUDNN_FMA_MATH),
        "cudnnSetConvolutionMathType");
  int count = 0;
  switch (shape.pass) {
    case ConvPass::output: {
      cudnnConvolutionFwdAlgoPerf_t found[CUDNN_CONVOLUTION_FWD_ALGO_COUNT];
      const cudnnStatus_t status =
          library.find_forward(handle, plan.input.get(), plan.filter.get(), plan.convolution.get(), plan.output.get(),
                               static_cast<int>(std::size(found)), &count, found);
      choose(library, plan, shape, status, found, count);
      break;
    }
    case ConvPass::input: {
      cudnnConvolutionBwdDataAlgoPerf_t found[CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT];
      const cudnnStatus_t status =
          library.find_backward_data(handle, plan.filter.get(), plan.output.get(), plan.convolution.get(),
                                     plan.input.get(), static_cast<int>(std::size(found)), &count, found);
      choose(library, plan, shape, status, found, count);
      break;
    }
    case ConvPass::filter: {
      cudnnConvolutionBwdFilterAlgoPerf_t found[CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT];
      const cudnnStatus_t status =
          library.find_backward_filter(handle, plan.input.get(), plan.output.get(), plan.convolution.get(),
                                       plan.filter.get(), static_cast<int>(std::size(found)), &count, found);
      choose(library, plan, shape, status, found, count);
      break;
    }
  }
  return plan.algorithm ? std::optional(std::move(plan)) : std::nullopt;
}

cudnnStatus_t run(const Cudnn& cudnn, const Plan& plan, const Shape& shape, void* input, void* filter, void* output,
                  void* workspace) {
  const CudnnLibrary& library = cudnn.library();
  const Scaling scaling(shape.dtype);
  switch (shape.pass) {
    case ConvPass::output:
      return library.forward(cudnn.handle(), scaling.alpha(), plan.input.get(), input, plan.filter.get(), filter,
                             plan.convolution.get(), static_cast<cudnnConvolutionFwdAlgo_t>(*plan.algorithm), workspace,
                             plan.workspace, scaling.beta(), plan.output.get(), output);
    case ConvPass::input:
      return library.backward_data(cudnn.handle(), scaling.alpha(), plan.filter.get(), filter, plan.output.get(),
                                   output, plan.convolution.get(),
                                   static_cast<cudnnConvolutionBwdDataAlgo_t>(*plan.algorithm), workspace,
                                   plan.workspace, scaling.beta(), plan.input.get(), input);
    case ConvPass::filter:
      return library.backward_filter(cudnn.handle(), scaling.alpha(), plan.input.get(), input, plan.output.get(),
                                     output, plan.convolution.get(),
                                     static_cast<cudnnConvolutionBwdFilterAlgo_t>(*plan.algorithm), workspace,
                                     plan.workspace, scaling.beta(), plan.filter.get(), filter);
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

/// The filter of a convolution with its channels last, as cuDNN reads it, or writes it where the pass computes the filter. That of an
/// op has them before its taps.
class FilterInOrder {
 public:
  FilterInOrder(const OpContext& ctx, ConvPass pass, const Convolution& conv, const DenseTensor& filter)
      : ctx_(ctx), is_result_(pass == ConvPass::filter), rows_(conv.out), channels_(conv.in / conv.groups),
        taps_(conv.kernel_places()), filter_(filter),
        other_(conv.image.channels_last && channels_ > 1 && taps_ > 1 ? filter.meta().bytes() : 0) {
    if (other_.data() != nullptr && !is_result_) copy(other_.data(), filter.raw(), {channels_, 1}, {1, taps_});
  }
  void* data() const { return other_.data() != nullptr ? other_.data() : filter_.raw(); }
  /// To be called after the pass.
  void finish() const {
    if (other_.data() != nullptr && is_result_) copy(filter_.raw(), other_.data(), {1, taps_}, {channels_, 1});
  }

 private:
  /// The distances of neighbouring taps and channels.
  struct Steps {
    int64_t tap, channel;
  };
  void copy(void* to, const void* from, Steps to_steps, Steps from_steps) const {
    StridedCopy copy(size_of(filter_.dtype()));
    copy.add(rows_, taps_ * channels_, taps_ * channels_);
    copy.add(taps_, to_steps.tap, from_steps.tap);
    copy.add(channels_, to_steps.channel, from_steps.channel);
    copy.run(ctx_, to, from);
  }

  const OpContext& ctx_;
  const bool is_result_;
  const int64_t rows_, channels_, taps_;
  const DenseTensor& filter_;
  const Scratch other_;
};

}  // namespace

bool convolve_by_cudnn(const OpContext& ctx, ConvPass pass, const Convolution& conv, const DenseTensor& input,
                       const DenseTensor& filter, const DenseTensor& output) {
  Cudnn* const cudnn = Cudnn::of(output.device().index);
  if (cudnn == nullptr) return false;
  if (!is_aligned(input) || !is_aligned(filter) || !is_aligned(output)) return false;
  const std::optional<Shape> shape = shape_of(pass, conv);
  if (!shape) return false;
  std::optional<Plan>& plan = cudnn->plan(*shape, make_plan);
  if (!plan) return false;
  const FilterInOrder ordered(ctx, pass, conv, filter);
  const Scratch workspace(plan->workspace);
  if (!is_done(run(*cudnn, *plan, *shape, input.raw(), ordered.data(), output.raw(), workspace.data()), plan,
               "a convolution of cuDNN"))
    return false;
  ordered.finish();
  return true;
}

}  // namespace shard::cuda
