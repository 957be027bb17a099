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
};

/// Null where it was not found.
const CudnnLibrary* cudnn_library();

}  // namespace shard::cuda

#pragma GCC diagnostic pop
