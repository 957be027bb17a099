// The functions of cuDNN that shard calls, of the host model. It is found only where the environment variable CUDA_HOST_CUDNN is
// set, because tests are for the library's own kernels otherwise.
#pragma once

#include <string>

#include "cuda_runtime_api.h"

#define CUDNN_MAJOR 9

enum cudnnStatus_t {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_NOT_INITIALIZED = 1001,
  CUDNN_STATUS_BAD_PARAM = 2000,
  CUDNN_STATUS_NOT_SUPPORTED = 3000,
  CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004,
  CUDNN_STATUS_EXECUTION_FAILED = 5000
};
enum cudnnDataType_t { CUDNN_DATA_FLOAT = 0, CUDNN_DATA_DOUBLE = 1, CUDNN_DATA_HALF = 2, CUDNN_DATA_BFLOAT16 = 9 };
enum cudnnNanPropagation_t { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 };
enum cudnnPoolingMode_t {
  CUDNN_POOLING_MAX = 0,
  CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1,
  CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2
};
enum cudnnRNNAlgo_t { CUDNN_RNN_ALGO_STANDARD = 0 };
enum cudnnRNNMode_t { CUDNN_RNN_RELU = 0, CUDNN_RNN_TANH = 1, CUDNN_LSTM = 2, CUDNN_GRU = 3 };
enum cudnnRNNBiasMode_t { CUDNN_RNN_DOUBLE_BIAS = 2 };
enum cudnnDirectionMode_t { CUDNN_UNIDIRECTIONAL = 0, CUDNN_BIDIRECTIONAL = 1 };
enum cudnnRNNInputMode_t { CUDNN_LINEAR_INPUT = 0 };
enum cudnnRNNDataLayout_t { CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED = 0 };
enum cudnnForwardMode_t { CUDNN_FWD_MODE_INFERENCE = 0, CUDNN_FWD_MODE_TRAINING = 1 };
enum cudnnWgradMode_t { CUDNN_WGRAD_MODE_ADD = 0, CUDNN_WGRAD_MODE_SET = 1 };
#define CUDNN_RNN_PADDED_IO_ENABLED (1U << 0)
enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC };
enum cudnnConvolutionMode_t { CUDNN_CROSS_CORRELATION = 1 };
enum cudnnMathType_t { CUDNN_TENSOR_OP_MATH = 1, CUDNN_FMA_MATH = 3 };
enum cudnnDeterminism_t { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 };
enum cudnnConvolutionFwdAlgo_t { CUDNN_CONVOLUTION_FWD_ALGO_COUNT = 8 };
enum cudnnConvolutionBwdDataAlgo_t { CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT = 6 };
enum cudnnConvolutionBwdFilterAlgo_t { CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7 };

using cudnnHandle_t = struct cudnnContext*;
using cudnnTensorDescriptor_t = struct cudnnTensorStruct*;
using cudnnFilterDescriptor_t = struct cudnnFilterStruct*;
using cudnnConvolutionDescriptor_t = struct cudnnConvolutionStruct*;
using cudnnPoolingDescriptor_t = struct cudnnPoolingStruct*;
using cudnnDropoutDescriptor_t = struct cudnnDropoutStruct*;
using cudnnRNNDescriptor_t = struct cudnnRNNStruct*;
using cudnnRNNDataDescriptor_t = struct cudnnRNNDataStruct*;

template <class Algorithm>
struct cudnnAlgoPerf {
  Algorithm algo;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnDeterminism_t determinism;
  cudnnMathType_t mathType;
};
using cudnnConvolutionFwdAlgoPerf_t = cudnnAlgoPerf<cudnnConvolutionFwdAlgo_t>;
using cudnnConvolutionBwdDataAlgoPerf_t = cudnnAlgoPerf<cudnnConvolutionBwdDataAlgo_t>;
using cudnnConvolutionBwdFilterAlgoPerf_t = cudnnAlgoPerf<cudnnConvolutionBwdFilterAlgo_t>;

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor);
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int count, const int sizes[]);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter);
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int count, const int sizes[]);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution);
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int count, const int padding[],
                                              const int strides[], const int dilations[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t type);
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                     cudnnTensorDescriptor_t y, int asked, int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* found);
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                          cudnnTensorDescriptor_t dx, int asked, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* found);
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv,
                                                            cudnnFilterDescriptor_t dw, int asked, int* count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* found);
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_type,
                                      const void* x, cudnnFilterDescriptor_t w_type, const void* w,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t y_type,
                                      void* y);
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_type,
                                           const void* w, cudnnTensorDescriptor_t dy_type, const void* dy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* workspace, size_t bytes, const void* beta,
                                           cudnnTensorDescriptor_t dx_type, void* dx);
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_type,
                                             const void* x, cudnnTensorDescriptor_t dy_type, const void* dy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes,
                                             const void* beta, cudnnFilterDescriptor_t dw_type, void* dw);

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling);
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling);
cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int count, const int sizes[], const int padding[],
                                          const int strides[]);
cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                  cudnnTensorDescriptor_t x_type, const void* x, const void* beta,
                                  cudnnTensorDescriptor_t y_type, void* y);
cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                   cudnnTensorDescriptor_t y_type, const void* y, cudnnTensorDescriptor_t dy_type,
                                   const void* dy, cudnnTensorDescriptor_t x_type, const void* x, const void* beta,
                                   cudnnTensorDescriptor_t dx_type, void* dx);

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int count,
                                         const int sizes[], const int steps[]);
cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* dropout);
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout);
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle, float probability,
                                        void* states, size_t bytes, unsigned long long seed);
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* rnn);
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn);
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t input_mode, cudnnDataType_t type, cudnnDataType_t compute,
                                       cudnnMathType_t math, int32_t inputs, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags);
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* data);
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data);
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int time, int batch, int width,
                                        const int lengths[], void* padding);
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t* work, size_t* reserve);
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t* bytes);
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int32_t cell, size_t bytes,
                                      const void* weights, int32_t number, cudnnTensorDescriptor_t matrix_type,
                                      void** matrix, cudnnTensorDescriptor_t bias_type, void** bias);
cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                              const int32_t lengths[], cudnnRNNDataDescriptor_t x_type, const void* x,
                              cudnnRNNDataDescriptor_t y_type, void* y, cudnnTensorDescriptor_t h_type, const void* hx,
                              void* hy, cudnnTensorDescriptor_t c_type, const void* cx, void* cy, size_t weight_bytes,
                              const void* weights, size_t work_bytes, void* work, size_t reserve_bytes, void* reserve);
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t lengths[],
                                      cudnnRNNDataDescriptor_t y_type, const void* y, const void* dy,
                                      cudnnRNNDataDescriptor_t x_type, void* dx, cudnnTensorDescriptor_t h_type,
                                      const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t c_type,
                                      const void* cx, const void* dcy, void* dcx, size_t weight_bytes,
                                      const void* weights, size_t work_bytes, void* work, size_t reserve_bytes,
                                      void* reserve);
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode,
                                         const int32_t lengths[], cudnnRNNDataDescriptor_t x_type, const void* x,
                                         cudnnTensorDescriptor_t h_type, const void* hx,
                                         cudnnRNNDataDescriptor_t y_type, const void* y, size_t weight_bytes,
                                         void* dweights, size_t work_bytes, void* work, size_t reserve_bytes,
                                         void* reserve);

namespace cuda_host {

/// How many convolutions, poolings and passes of networks cuDNN has computed.
uint64_t convolutions();
/// How many convolutions have run by the algorithm that is not deterministic, those of graphs each time.
uint64_t unordered_convolutions();
uint64_t poolings();
uint64_t recurrent_passes();
/// The next call by this thread of a function, of some of them, has this status and does nothing.
void fail_cudnn(const std::string& function, cudnnStatus_t status);

}  // namespace cuda_host
