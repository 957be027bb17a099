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
  library.find(functions.create_pooling, "cudnnCreatePoolingDescriptor");
  library.find(functions.set_pooling, "cudnnSetPoolingNdDescriptor");
  library.find(functions.destroy_pooling, "cudnnDestroyPoolingDescriptor");
  library.find(functions.pool, "cudnnPoolingForward");
  library.find(functions.pool_backward, "cudnnPoolingBackward");
  library.find(functions.set_tensor_steps, "cudnnSetTensorNdDescriptor");
  library.find(functions.create_dropout, "cudnnCreateDropoutDescriptor");
  library.find(functions.set_dropout, "cudnnSetDropoutDescriptor");
  library.find(functions.destroy_dropout, "cudnnDestroyDropoutDescriptor");
  library.find(functions.create_rnn, "cudnnCreateRNNDescriptor");
  library.find(functions.set_rnn, "cudnnSetRNNDescriptor_v8");
  library.find(functions.destroy_rnn, "cudnnDestroyRNNDescriptor");
  library.find(functions.create_rnn_data, "cudnnCreateRNNDataDescriptor");
  library.find(functions.set_rnn_data, "cudnnSetRNNDataDescriptor");
  library.find(functions.destroy_rnn_data, "cudnnDestroyRNNDataDescriptor");
  library.find(functions.rnn_space, "cudnnGetRNNTempSpaceSizes");
  library.find(functions.rnn_weight_space, "cudnnGetRNNWeightSpaceSize");
  library.find(functions.rnn_weight, "cudnnGetRNNWeightParams");
  library.find(functions.rnn_forward, "cudnnRNNForward");
  library.find(functions.rnn_backward_data, "cudnnRNNBackwardData_v8");
  library.find(functions.rnn_backward_weights, "cudnnRNNBackwardWeights_v8");
  return library.is_complete() ? std::optional(functions) : std::nullopt;
}

}  // namespace

const CudnnLibrary* cudnn_library() {
  static const std::optional<CudnnLibrary> library = open();
  return library ? &*library : nullptr;
}

}  // namespace shard::cuda
