#include "shard/kernels/cuda/conv_cudnn.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/error.h"
#include "shard/kernels/cuda/cudnn_library.cuh"
#include "shard/kernels/cuda/strided_copy.cuh"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // see cudnn_library.cuh

namespace shard::cuda {
namespace {

using cpu::Convolution;
using cpu::ConvPass;
using meta::Window;

/// Algorithms that need more scratch memory are not used.
constexpr size_t kMostWorkspace = size_t{1} << 30;
constexpr size_t kCachedPlans = 1024;

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(ErrorCode::device, "{} failed: status {}", call, static_cast<int>(status));
}

/// The sizes that cuDNN takes: of batch or rows, channels, and the space dims.
using Sizes = std::array<int, 5>;

/// A convolution as far as algorithms depend on it.
struct Shape {
  ConvPass pass;
  DType dtype;
  bool channels_last;
  int dims, groups;
  Sizes input, filter, output, before, strides, dilations;

  auto operator<=>(const Shape&) const = default;
};

/// Nullopt where cuDNN cannot describe the convolution.
std::optional<Shape> shape_of(ConvPass pass, const Convolution& conv) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (conv.batch * conv.in * conv.in_places() > kMost || conv.batch * conv.out * conv.out_places() > kMost ||
      conv.filter_numel() > kMost)
    return std::nullopt;
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  Shape shape{pass, conv.dtype, conv.image.channels_last, conv.image.space + 2, number(conv.groups), {}, {}, {}, {},
              {},   {}};
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

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64: return CUDNN_DATA_DOUBLE;
    case DType::bfloat16: return CUDNN_DATA_BFLOAT16;
    case DType::float16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
  }
}

struct Destroy {
  const CudnnLibrary* library;
  void operator()(cudnnTensorDescriptor_t tensor) const { library->destroy_tensor(tensor); }
  void operator()(cudnnFilterDescriptor_t filter) const { library->destroy_filter(filter); }
  void operator()(cudnnConvolutionDescriptor_t convolution) const { library->destroy_convolution(convolution); }
};
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy>;

template <class T, class Create>
Owned<T> make(const CudnnLibrary& library, Create* create, const char* call) {
  T raw = nullptr;
  check(create(&raw), call);
  return Owned<T>(raw, Destroy{&library});
}

/// Filters have the order of the images.
cudnnTensorFormat_t format_of(const Shape& shape) {
  return shape.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}

Owned<cudnnTensorDescriptor_t> make_tensor(const CudnnLibrary& library, const Shape& shape, const Sizes& sizes) {
  auto tensor = make<cudnnTensorDescriptor_t>(library, library.create_tensor, "cudnnCreateTensorDescriptor");
  check(library.set_tensor(tensor.get(), format_of(shape), data_type(shape.dtype), shape.dims, sizes.data()),
        "cudnnSetTensorNdDescriptorEx");
  return tensor;
}

/// The descriptors of a convolution, and its algorithm.
struct Plan {
  Owned<cudnnTensorDescriptor_t> input, output;
  Owned<cudnnFilterDescriptor_t> filter;
  Owned<cudnnConvolutionDescriptor_t> convolution;
  std::optional<int> algorithm = {};
  size_t workspace = 0;
};

/// Takes the first algorithm, that is the fastest as cuDNN estimates, which fits, gives the same result in each run and does not round
/// floats to fewer bits. Its math type belongs to it.
template <class Found>
void choose(const CudnnLibrary& library, Plan& plan, DType dtype, cudnnStatus_t status, const Found* begin, int count) {
  if (status != CUDNN_STATUS_SUCCESS) return;
  const Found* const end = begin + count;
  const Found* const best = std::find_if(begin, end, [&](const Found& each) {
    return each.status == CUDNN_STATUS_SUCCESS && each.determinism == CUDNN_DETERMINISTIC &&
           each.memory <= kMostWorkspace && (dtype != DType::float32 || each.mathType == CUDNN_FMA_MATH);
  });
  if (best == end) return;
  check(library.set_math_type(plan.convolution.get(), best->mathType), "cudnnSetConvolutionMathType");
  plan.algorithm = static_cast<int>(best->algo);
  plan.workspace = best->memory;
}

Plan make_plan(const CudnnLibrary& library, cudnnHandle_t handle, const Shape& shape) {
  Plan plan{
      make_tensor(library, shape, shape.input), make_tensor(library, shape, shape.output),
      make<cudnnFilterDescriptor_t>(library, library.create_filter, "cudnnCreateFilterDescriptor"),
      make<cudnnConvolutionDescriptor_t>(library, library.create_convolution, "cudnnCreateConvolutionDescriptor")};
  check(
      library.set_filter(plan.filter.get(), data_type(shape.dtype), format_of(shape), shape.dims, shape.filter.data()),
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
      choose(library, plan, shape.dtype, status, found, count);
      break;
    }
    case ConvPass::input: {
      cudnnConvolutionBwdDataAlgoPerf_t found[CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT];
      const cudnnStatus_t status =
          library.find_backward_data(handle, plan.filter.get(), plan.output.get(), plan.convolution.get(),
                                     plan.input.get(), static_cast<int>(std::size(found)), &count, found);
      choose(library, plan, shape.dtype, status, found, count);
      break;
    }
    case ConvPass::filter: {
      cudnnConvolutionBwdFilterAlgoPerf_t found[CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT];
      const cudnnStatus_t status =
          library.find_backward_filter(handle, plan.input.get(), plan.output.get(), plan.convolution.get(),
                                       plan.filter.get(), static_cast<int>(std::size(found)), &count, found);
      choose(library, plan, shape.dtype, status, found, count);
      break;
    }
  }
  return plan;
}

/// The handle of this thread for one device, and the plans that were made with it. What cuDNN cannot do has no plan: its own functions
/// refuse more or less from version to version.
class Cudnn {
 public:
  explicit Cudnn(const CudnnLibrary& library) : library_(library) {
    const std::lock_guard lock(recording_mutex());
    if (library.create(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;  // parts of the installation are missing
  }
  ~Cudnn() {
    plans_.clear();
    const std::lock_guard lock(recording_mutex());
    if (handle_ != nullptr) library_.destroy(handle_);
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  static Cudnn& of(const CudnnLibrary& library, int device) {
    thread_local std::unique_ptr<std::map<int, Cudnn>> of_device;  // a pointer: libraries have little space for these
    if (of_device == nullptr) of_device = std::make_unique<std::map<int, Cudnn>>();
    return of_device->try_emplace(device, library).first->second;
  }
  cudnnHandle_t handle() const { return handle_; }
  std::optional<Plan>& plan(const Shape& shape) {
    const auto found = plans_.find(shape);
    if (found != plans_.end()) return found->second;
    if (plans_.size() == kCachedPlans) plans_.clear();
    std::optional<Plan>& plan = plans_[shape];
    if (handle_ == nullptr) return plan;
    const std::lock_guard lock(recording_mutex());  // it may load libraries
    try {
      plan = make_plan(library_, handle_, shape);
    } catch (const Error&) { return plan; }
    if (!plan->algorithm) plan.reset();
    return plan;
  }

 private:
  const CudnnLibrary& library_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Shape, std::optional<Plan>> plans_;
};

cudnnStatus_t run(const CudnnLibrary& library, cudnnHandle_t handle, const Plan& plan, const Shape& shape, void* input,
                  void* filter, void* output, void* workspace) {
  const float one = 1, zero = 0;
  const double double_one = 1, double_zero = 0;
  const bool is_double = shape.dtype == DType::float64;
  const void* const alpha = is_double ? static_cast<const void*>(&double_one) : &one;
  const void* const beta = is_double ? static_cast<const void*>(&double_zero) : &zero;
  switch (shape.pass) {
    case ConvPass::output:
      return library.forward(handle, alpha, plan.input.get(), input, plan.filter.get(), filter, plan.convolution.get(),
                             static_cast<cudnnConvolutionFwdAlgo_t>(*plan.algorithm), workspace, plan.workspace, beta,
                             plan.output.get(), output);
    case ConvPass::input:
      return library.backward_data(handle, alpha, plan.filter.get(), filter, plan.output.get(), output,
                                   plan.convolution.get(), static_cast<cudnnConvolutionBwdDataAlgo_t>(*plan.algorithm),
                                   workspace, plan.workspace, beta, plan.input.get(), input);
    case ConvPass::filter:
      return library.backward_filter(handle, alpha, plan.input.get(), input, plan.output.get(), output,
                                     plan.convolution.get(),
                                     static_cast<cudnnConvolutionBwdFilterAlgo_t>(*plan.algorithm), workspace,
                                     plan.workspace, beta, plan.filter.get(), filter);
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
  const CudnnLibrary* const library = cudnn_library();
  if (library == nullptr) return false;
  const auto is_aligned = [](const DenseTensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0; };
  if (!is_aligned(input) || !is_aligned(filter) || !is_aligned(output)) return false;
  const std::optional<Shape> shape = shape_of(pass, conv);
  if (!shape) return false;
  Cudnn& cudnn = Cudnn::of(*library, output.device().index);
  std::optional<Plan>& plan = cudnn.plan(*shape);
  if (!plan) return false;
  const FilterInOrder ordered(ctx, pass, conv, filter);
  const Scratch workspace(plan->workspace);
  check(library->set_stream(cudnn.handle(), stream()), "cudnnSetStream");
  const cudnnStatus_t status =
      run(*library, cudnn.handle(), *plan, *shape, input.raw(), ordered.data(), output.raw(), workspace.data());
  const int category = static_cast<int>(status) / 1000 * 1000;  // a refusal has not issued anything
  if (category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM) {
    plan.reset();
    return false;
  }
  check(status, "a convolution of cuDNN");
  ordered.finish();
  return true;
}

}  // namespace shard::cuda
