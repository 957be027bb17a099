// Calls of cuDNN: descriptors that are owned, and the handle of a thread with what was made by it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <typeindex>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/kernels/cuda/cudnn_library.cuh"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // see cudnn_library.cuh

namespace shard::cuda {

/// cuDNN does not support what it was asked for. Other errors may be of the moment, such as too little memory.
class Unsupported final : public Error {
 public:
  using Error::Error;
};

/// Throws Unsupported or Error(device) naming `call` unless `status` is success.
void check(cudnnStatus_t status, const char* call);

/// To be called where `error` is caught: throws it again if the device or the stream of this thread has failed, or its recording. Otherwise
/// kernels of the library can compute what cuDNN has not, and the error is a message of the log.
void pass_over(const Error& error);

/// Calls body, which may throw an Error of cuDNN. Returns whether the answer is for good: what is not supported will not be later.
template <class Body>
bool is_settled(const Body& body) {
  try {
    body();
  } catch (const Unsupported&) {
  } catch (const Error& error) {
    pass_over(error);
    return false;
  }
  return true;
}

/// Whether a call of cuDNN has issued all its work. Otherwise kernels of the library compute what it should: it does not support the call,
/// for which there is no plan from then on, or has failed on a device that works.
template <class Plan>
bool is_done(cudnnStatus_t status, std::optional<Plan>& plan, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return true;
  if (is_settled([&] { check(status, call); })) plan.reset();
  return false;
}

inline cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::float64: return CUDNN_DATA_DOUBLE;
    case DType::bfloat16: return CUDNN_DATA_BFLOAT16;
    case DType::float16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
  }
}

/// Whether all kernels of cuDNN take the address of a tensor.
inline bool is_aligned(const DenseTensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0; }

/// 1 and 0 as cuDNN takes them for tensors of a dtype: results are alpha times what is computed plus beta times what was there.
struct Scaling {
  explicit Scaling(DType dtype) : is_double_(dtype == DType::float64) {}
  const void* alpha() const { return is_double_ ? static_cast<const void*>(&kDoubleOne) : &kOne; }
  const void* beta() const { return is_double_ ? static_cast<const void*>(&kDoubleZero) : &kZero; }

 private:
  static constexpr float kOne = 1, kZero = 0;
  static constexpr double kDoubleOne = 1, kDoubleZero = 0;
  bool is_double_;
};

struct DestroyCudnn {
  const CudnnLibrary* library;
  void operator()(cudnnTensorDescriptor_t each) const { library->destroy_tensor(each); }
  void operator()(cudnnFilterDescriptor_t each) const { library->destroy_filter(each); }
  void operator()(cudnnConvolutionDescriptor_t each) const { library->destroy_convolution(each); }
  void operator()(cudnnPoolingDescriptor_t each) const { library->destroy_pooling(each); }
  void operator()(cudnnDropoutDescriptor_t each) const { library->destroy_dropout(each); }
  void operator()(cudnnRNNDescriptor_t each) const { library->destroy_rnn(each); }
  void operator()(cudnnRNNDataDescriptor_t each) const { library->destroy_rnn_data(each); }
};
/// A descriptor. T: its type in cuDNN, a pointer.
template <class T>
using CudnnOwned = std::unique_ptr<std::remove_pointer_t<T>, DestroyCudnn>;

template <class T>
CudnnOwned<T> make_cudnn(const CudnnLibrary& library, cudnnStatus_t (*create)(T*), const char* call) {
  T raw = nullptr;
  check(create(&raw), call);
  return CudnnOwned<T>(raw, DestroyCudnn{&library});
}

/// The order of images, and of the filters of their convolutions.
inline cudnnTensorFormat_t image_format(bool channels_last) {
  return channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}
/// Images whose `dims` sizes are batch, channels, and the space dims.
inline CudnnOwned<cudnnTensorDescriptor_t> make_image(const CudnnLibrary& library, DType dtype, bool channels_last,
                                                      int dims, const int* sizes) {
  auto image = make_cudnn<cudnnTensorDescriptor_t>(library, library.create_tensor, "cudnnCreateTensorDescriptor");
  check(library.set_tensor(image.get(), image_format(channels_last), cudnn_type(dtype), dims, sizes),
        "cudnnSetTensorNdDescriptorEx");
  return image;
}

/// The handle of this thread for one device, and the plans that were made with it. What cuDNN cannot do has no plan: its own functions
/// refuse more or less from version to version.
class Cudnn {
 public:
  Cudnn(int device, const CudnnLibrary& library) : device_(device), library_(library) {}
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  /// That of a device; null where cuDNN is not there.
  static Cudnn* of(int device);

  const CudnnLibrary& library() const { return library_; }
  /// The handle, which issues to the stream of this thread.
  cudnnHandle_t handle() const;

  /// The plan for a shape, which `make(cudnn, shape)` makes at its first use: a std::optional<Plan>, absent where cuDNN has none or does not
  /// support the shape. After any other error it is absent too, and made at the next use.
  template <class Shape, class Make>
  auto& plan(const Shape& shape, const Make& make) {
    using Found = decltype(make(*this, shape));
    struct Entry {
      Found plan;
      bool is_settled = false;
    };
    std::shared_ptr<void>& all = plans_[std::type_index(typeid(Entry))];
    if (all == nullptr) all = std::make_shared<std::map<Shape, Entry>>();
    auto& of_shape = *static_cast<std::map<Shape, Entry>*>(all.get());
    if (of_shape.size() == kMostPlans && of_shape.count(shape) == 0) of_shape.clear();
    Entry& entry = of_shape[shape];
    if (entry.is_settled) return entry.plan;
    const std::lock_guard lock(recording_mutex());  // it may load libraries
    entry.is_settled = is_settled([&] {
      open();
      entry.plan = make(*this, shape);
    });
    return entry.plan;
  }

 private:
  /// Creates the handle, unless there is one.
  void open();

  static constexpr size_t kMostPlans = 1024;
  const int device_;
  const CudnnLibrary& library_;
  cudnnHandle_t handle_ = nullptr;
  std::map<std::type_index, std::shared_ptr<void>> plans_;
};

}  // namespace shard::cuda

#pragma GCC diagnostic pop
