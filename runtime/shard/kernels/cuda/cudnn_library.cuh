// The functions of cuDNN that are called, from the library that is opened at run time.
#pragma once

#include <cudnn.h>

// cuDNN advises its newer interface, which makes its kernels at run time, in the place of these functions.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace shard::cuda {

struct CudnnLibrary {
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnCreateTensorDescriptor) create_tensor;
  decltype(&cudnnSetTensorNdDescriptorEx) set_tensor;
  decltype(&cudnnCreateFilterDescriptor) create_filter;
  decltype(&cudnnSetFilterNdDescriptor) set_filter;
  decltype(&cudnnCreateConvolutionDescriptor) create_convolution;
  decltype(&cudnnSetConvolutionNdDescriptor) set_convolution;
  decltype(&cudnnSetConvolutionGroupCount) set_groups;
  decltype(&cudnnSetConvolutionMathType) set_math_type;
  decltype(&cudnnDestroyTensorDescriptor) destroy_tensor;
  decltype(&cudnnDestroyFilterDescriptor) destroy_filter;
  decltype(&cudnnDestroyConvolutionDescriptor) destroy_convolution;
  decltype(&cudnnGetConvolutionForwardAlgorithm_v7) find_forward;
  decltype(&cudnnGetConvolutionBackwardDataAlgorithm_v7) find_backward_data;
  decltype(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) find_backward_filter;
  decltype(&cudnnConvolutionForward) forward;
  decltype(&cudnnConvolutionBackwardData) backward_data;
  decltype(&cudnnConvolutionBackwardFilter) backward_filter;

  decltype(&cudnnCreatePoolingDescriptor) create_pooling;
  decltype(&cudnnSetPoolingNdDescriptor) set_pooling;
  decltype(&cudnnDestroyPoolingDescriptor) destroy_pooling;
  decltype(&cudnnPoolingForward) pool;
  decltype(&cudnnPoolingBackward) pool_backward;

  decltype(&cudnnSetTensorNdDescriptor) set_tensor_steps;
  decltype(&cudnnCreateDropoutDescriptor) create_dropout;
  decltype(&cudnnSetDropoutDescriptor) set_dropout;
  decltype(&cudnnDestroyDropoutDescriptor) destroy_dropout;
  decltype(&cudnnCreateRNNDescriptor) create_rnn;
  decltype(&cudnnSetRNNDescriptor_v8) set_rnn;
  decltype(&cudnnDestroyRNNDescriptor) destroy_rnn;
  decltype(&cudnnCreateRNNDataDescriptor) create_rnn_data;
  decltype(&cudnnSetRNNDataDescriptor) set_rnn_data;
  decltype(&cudnnDestroyRNNDataDescriptor) destroy_rnn_data;
  decltype(&cudnnGetRNNTempSpaceSizes) rnn_space;
  decltype(&cudnnGetRNNWeightSpaceSize) rnn_weight_space;
  decltype(&cudnnGetRNNWeightParams) rnn_weight;
  decltype(&cudnnRNNForward) rnn_forward;
  decltype(&cudnnRNNBackwardData_v8) rnn_backward_data;
  decltype(&cudnnRNNBackwardWeights_v8) rnn_backward_weights;
};

/// Null where it was not found.
const CudnnLibrary* cudnn_library();

}  // namespace shard::cuda

#pragma GCC diagnostic pop
