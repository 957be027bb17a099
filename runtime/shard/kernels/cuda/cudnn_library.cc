#include "shard/kernels/cuda/cudnn_library.cuh"

#include <optional>
#include <string>

#include "shard/kernels/cuda/opened_library.h"

namespace shard::cuda {
namespace {

std::optional<CudnnLibrary> open() {
  const std::string versioned = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
  OpenedLibrary library({versioned.c_str()});
  CudnnLibrary functions{};
  library.find(functions.create, "cudnnCreate");
  library.find(functions.destroy, "cudnnDestroy");
  library.find(functions.set_stream, "cudnnSetStream");
  library.find(functions.create_tensor, "cudnnCreateTensorDescriptor");
  library.find(functions.set_tensor, "cudnnSetTensorNdDescriptorEx");
  library.find(functions.create_filter, "cudnnCreateFilterDescriptor");
  library.find(functions.set_filter, "cudnnSetFilterNdDescriptor");
  library.find(functions.create_convolution, "cudnnCreateConvolutionDescriptor");
  library.find(functions.set_convolution, "cudnnSetConvolutionNdDescriptor");
  library.find(functions.set_groups, "cudnnSetConvolutionGroupCount");
  library.find(functions.set_math_type, "cudnnSetConvolutionMathType");
  library.find(functions.destroy_tensor, "cudnnDestroyTensorDescriptor");
  library.find(functions.destroy_filter, "cudnnDestroyFilterDescriptor");
  library.find(functions.destroy_convolution, "cudnnDestroyConvolutionDescriptor");
  library.find(functions.find_forward, "cudnnGetConvolutionForwardAlgorithm_v7");
  library.find(functions.find_backward_data, "cudnnGetConvolutionBackwardDataAlgorithm_v7");
  library.find(functions.find_backward_filter, "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
  library.find(functions.forward, "cudnnConvolutionForward");
  library.find(functions.backward_data, "cudnnConvolutionBackwardData");
  library.find(functions.backward_filter, "cudnnConvolutionBackwardFilter");
  return library.is_complete() ? std::optional(functions) : std::nullopt;
}

}  // namespace

const CudnnLibrary* cudnn_library() {
  static const std::optional<CudnnLibrary> library = open();
  return library ? &*library : nullptr;
}

}  // namespace shard::cuda
