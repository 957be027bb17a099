// cuDNN of the host model: sizes, dtypes, scratch memory and the meaning of arguments are checked as the library documents them;
// results are summed in double.
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "cudnn_model.h"
#include "shard/kernels/cuda/cudnn_library.cuh"

struct cudnnFilterStruct : cudnnTensorStruct {};
struct cudnnConvolutionStruct {
  int count = 0, groups = 1;
  std::array<int64_t, 3> padding{0, 0, 0}, strides{1, 1, 1}, dilations{1, 1, 1};
  cudnnDataType_t compute;
  cudnnMathType_t math = CUDNN_TENSOR_OP_MATH;
};

namespace {

using namespace cudnn_host;
using Convolution = cudnnConvolutionStruct;

std::atomic<uint64_t> issued = 0, unordered = 0;
thread_local std::map<std::string, cudnnStatus_t> wanted;

/// What the deterministic algorithms of the model need.
constexpr size_t kWorkspace = 192;
constexpr int kUnordered = 3;

bool fits(const Tensor& x, const Tensor& w, const Convolution& conv, const Tensor& y) {
  const bool is_double = x.type == CUDNN_DATA_DOUBLE;
  bool fits = x.type == w.type && x.type == y.type && x.channels_last == w.channels_last &&
              x.channels_last == y.channels_last && x.count == w.count && x.count == y.count &&
              conv.count == x.count - 2 && conv.compute == (is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT) &&
              x.sizes[0] == y.sizes[0] && w.sizes[0] == y.sizes[1] && w.sizes[1] * conv.groups == x.sizes[1] &&
              w.sizes[0] % conv.groups == 0;
  for (size_t i = 0; fits && i < 3; ++i) {
    const int64_t reach = (w.sizes[2 + i] - 1) * conv.dilations[i] + 1;
    fits = y.sizes[2 + i] == (x.sizes[2 + i] + 2 * conv.padding[i] - reach) / conv.strides[i] + 1;
  }
  return fits;
}

template <class Perf>
cudnnStatus_t answer(bool fits, int asked, int* count, Perf* found) {
  if (!fits || asked < 4) return CUDNN_STATUS_BAD_PARAM;
  using Algorithm = decltype(found[0].algo);
  // The fastest one is not deterministic, the next takes more memory than anyone has, and then there is one that rounds floats.
  found[0] = {static_cast<Algorithm>(kUnordered), CUDNN_STATUS_SUCCESS, 1, 0, CUDNN_NON_DETERMINISTIC, CUDNN_FMA_MATH};
  found[1] = {static_cast<Algorithm>(2), CUDNN_STATUS_SUCCESS, 2, size_t{1} << 50, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH};
  found[2] = {static_cast<Algorithm>(0), CUDNN_STATUS_SUCCESS, 3, kWorkspace,
              CUDNN_DETERMINISTIC,       CUDNN_TENSOR_OP_MATH};
  found[3] = {static_cast<Algorithm>(1), CUDNN_STATUS_SUCCESS, 4, kWorkspace, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH};
  *count = 4;
  return CUDNN_STATUS_SUCCESS;
}

enum class Pass { output, input, filter };

struct Call {
  Pass pass;
  Tensor x, w, y;
  Convolution conv;
  void *x_data, *w_data, *y_data;
  void* workspace;

  void run() const {
    const auto use = [&](const Tensor& tensor, const void* data, const char* name, Pass result) {
      use_tensor(tensor, data, name, pass == result ? cuda_host::Kind::write : cuda_host::Kind::read);
    };
    use(x, x_data, "x", Pass::input);
    use(w, w_data, "w", Pass::filter);
    use(y, y_data, "y", Pass::output);
    std::vector<double> sums(static_cast<size_t>(result().numel()));
    const int64_t rows = w.sizes[0] / conv.groups;
    std::array<int64_t, 5> at{};
    for (int64_t o = 0; o < y.numel(); ++o) {
      int64_t rest = o;
      for (size_t d = 5; d-- > 0; rest /= y.sizes[d]) at[d] = rest % y.sizes[d];
      const int64_t first_channel = at[1] / rows * w.sizes[1];
      for (int64_t tap = 0; tap < w.sizes[1] * w.sizes[2] * w.sizes[3] * w.sizes[4]; ++tap) {
        int64_t taps = tap, channel = 0, from = 0, step = 1;
        bool inside = true;
        for (size_t d = 4; d >= 2; --d) {
          const int64_t k = taps % w.sizes[d],
                        place = at[d] * conv.strides[d - 2] - conv.padding[d - 2] + k * conv.dilations[d - 2];
          taps /= w.sizes[d];
          inside = inside && place >= 0 && place < x.sizes[d];
          from += place * step;
          step *= x.sizes[d];
        }
        if (!inside) continue;
        channel = taps + first_channel;
        from += (at[0] * x.sizes[1] + channel) * step;
        const int64_t weight = at[1] * (w.numel() / w.sizes[0]) + tap;
        add(sums, o, from, weight);
      }
    }
    void* const to = pass == Pass::output ? y_data : pass == Pass::input ? x_data : w_data;
    for (size_t i = 0; i < sums.size(); ++i) write(result(), to, static_cast<int64_t>(i), sums[i]);
  }

 private:
  const Tensor& result() const { return pass == Pass::output ? y : pass == Pass::input ? x : w; }
  void add(std::vector<double>& sums, int64_t o, int64_t from, int64_t weight) const {
    switch (pass) {
      case Pass::output: sums[static_cast<size_t>(o)] += read(x, x_data, from) * read(w, w_data, weight); break;
      case Pass::input: sums[static_cast<size_t>(from)] += read(y, y_data, o) * read(w, w_data, weight); break;
      case Pass::filter: sums[static_cast<size_t>(weight)] += read(x, x_data, from) * read(y, y_data, o); break;
    }
  }
};

cudnnStatus_t issue(cudnnHandle_t handle, const Call& call, int algorithm, size_t bytes, const void* alpha,
                    const void* beta) {
  const bool is_unordered = algorithm == kUnordered && call.conv.math == CUDNN_FMA_MATH;
  if (!fits(call.x, call.w, call.conv, call.y) || !overwrites(call.x.type, alpha, beta) ||
      (!is_unordered && (algorithm != (call.conv.math == CUDNN_TENSOR_OP_MATH ? 0 : 1) || bytes < kWorkspace ||
                         cuda_host::find_region(call.workspace) == nullptr)))
    return CUDNN_STATUS_BAD_PARAM;
  ++issued;
  cuda_host::submit(handle->stream, [call, is_unordered] {
    const cuda_host::DeviceAccess access;
    call.run();
    unordered += is_unordered ? 1 : 0;
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

namespace cuda_host {
uint64_t convolutions() { return issued; }
uint64_t unordered_convolutions() { return unordered; }
void fail_cudnn(const std::string& function, cudnnStatus_t status) { wanted[function] = status; }
}  // namespace cuda_host

namespace cudnn_host {
cudnnStatus_t wanted_status(const std::string& function) {
  const auto found = wanted.extract(function);
  return found.empty() ? CUDNN_STATUS_SUCCESS : found.mapped();
}
}  // namespace cudnn_host

namespace shard::cuda {

const CudnnLibrary* cudnn_library() {
  static const CudnnLibrary library{cudnnCreate,
                                    cudnnDestroy,
                                    cudnnSetStream,
                                    cudnnCreateTensorDescriptor,
                                    cudnnSetTensorNdDescriptorEx,
                                    cudnnCreateFilterDescriptor,
                                    cudnnSetFilterNdDescriptor,
                                    cudnnCreateConvolutionDescriptor,
                                    cudnnSetConvolutionNdDescriptor,
                                    cudnnSetConvolutionGroupCount,
                                    cudnnSetConvolutionMathType,
                                    cudnnDestroyTensorDescriptor,
                                    cudnnDestroyFilterDescriptor,
                                    cudnnDestroyConvolutionDescriptor,
                                    cudnnGetConvolutionForwardAlgorithm_v7,
                                    cudnnGetConvolutionBackwardDataAlgorithm_v7,
                                    cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                                    cudnnConvolutionForward,
                                    cudnnConvolutionBackwardData,
                                    cudnnConvolutionBackwardFilter,
                                    cudnnCreatePoolingDescriptor,
                                    cudnnSetPoolingNdDescriptor,
                                    cudnnDestroyPoolingDescriptor,
                                    cudnnPoolingForward,
                                    cudnnPoolingBackward,
                                    cudnnSetTensorNdDescriptor,
                                    cudnnCreateDropoutDescriptor,
                                    cudnnSetDropoutDescriptor,
                                    cudnnDestroyDropoutDescriptor,
                                    cudnnCreateRNNDescriptor,
                                    cudnnSetRNNDescriptor_v8,
                                    cudnnDestroyRNNDescriptor,
                                    cudnnCreateRNNDataDescriptor,
                                    cudnnSetRNNDataDescriptor,
                                    cudnnDestroyRNNDataDescriptor,
                                    cudnnGetRNNTempSpaceSizes,
                                    cudnnGetRNNWeightSpaceSize,
                                    cudnnGetRNNWeightParams,
                                    cudnnRNNForward,
                                    cudnnRNNBackwardData_v8,
                                    cudnnRNNBackwardWeights_v8};
  return std::getenv("CUDA_HOST_CUDNN") != nullptr ? &library : nullptr;
}

}  // namespace shard::cuda

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  const cudnnStatus_t status = wanted_status("cudnnCreate");
  return status == CUDNN_STATUS_SUCCESS ? make(handle) : status;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return drop(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) { return make(tensor); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) { return drop(tensor); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) { return make(filter); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) { return drop(filter); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) { return make(convolution); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) { return drop(convolution); }

cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int count, const int sizes[]) {
  if (count < 4 || count > 5) return CUDNN_STATUS_BAD_PARAM;
  set_sizes(*tensor, format, type, count, sizes);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int count, const int sizes[]) {
  if (count < 4 || count > 5) return CUDNN_STATUS_BAD_PARAM;
  set_sizes(*filter, format, type, count, sizes);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int count, const int padding[],
                                              const int strides[], const int dilations[], cudnnConvolutionMode_t,
                                              cudnnDataType_t compute) {
  if (count < 2 || count > 3) return CUDNN_STATUS_BAD_PARAM;
  convolution->count = count;
  convolution->compute = compute;
  for (int i = 0; i < count; ++i) {
    const size_t to = static_cast<size_t>(3 - count + i);
    convolution->padding[to] = padding[i];
    convolution->strides[to] = strides[i];
    convolution->dilations[to] = dilations[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  convolution->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t type) {
  convolution->math = type;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                     cudnnFilterDescriptor_t w, cudnnConvolutionDescriptor_t conv,
                                                     cudnnTensorDescriptor_t y, int asked, int* count,
                                                     cudnnConvolutionFwdAlgoPerf_t* found) {
  const cudnnStatus_t status = wanted_status("cudnnGetConvolutionForwardAlgorithm_v7");
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return answer(fits(*x, *w, *conv, *y), asked, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w,
                                                          cudnnTensorDescriptor_t dy, cudnnConvolutionDescriptor_t conv,
                                                          cudnnTensorDescriptor_t dx, int asked, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return answer(fits(*dx, *w, *conv, *dy), asked, count, found);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x,
                                                            cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t conv,
                                                            cudnnFilterDescriptor_t dw, int asked, int* count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return answer(fits(*x, *dw, *conv, *dy), asked, count, found);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_type,
                                      const void* x, cudnnFilterDescriptor_t w_type, const void* w,
                                      cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algorithm,
                                      void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t y_type,
                                      void* y) {
  const cudnnStatus_t status = wanted_status("cudnnConvolutionForward");
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const Call call{Pass::output,         *x_type, *w_type,  *y_type, *conv, const_cast<void*>(x),
                  const_cast<void*>(w), y,       workspace};
  return issue(handle, call, algorithm, bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t w_type,
                                           const void* w, cudnnTensorDescriptor_t dy_type, const void* dy,
                                           cudnnConvolutionDescriptor_t conv, cudnnConvolutionBwdDataAlgo_t algorithm,
                                           void* workspace, size_t bytes, const void* beta,
                                           cudnnTensorDescriptor_t dx_type, void* dx) {
  const Call call{Pass::input,           *dx_type, *w_type, *dy_type, *conv, dx, const_cast<void*>(w),
                  const_cast<void*>(dy), workspace};
  return issue(handle, call, algorithm, bytes, alpha, beta);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_type,
                                             const void* x, cudnnTensorDescriptor_t dy_type, const void* dy,
                                             cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes,
                                             const void* beta, cudnnFilterDescriptor_t dw_type, void* dw) {
  const Call call{Pass::filter,          *x_type,  *dw_type, *dy_type, *conv, const_cast<void*>(x), dw,
                  const_cast<void*>(dy), workspace};
  return issue(handle, call, algorithm, bytes, alpha, beta);
}
