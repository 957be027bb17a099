// Pooling of cuDNN, of the host model.
#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "cudnn_model.h"

struct cudnnPoolingStruct {
  cudnnPoolingMode_t mode;
  int count = 0;
  std::array<int64_t, 3> sizes{1, 1, 1}, padding{0, 0, 0}, strides{1, 1, 1};
};

namespace {

using namespace cudnn_host;
using cuda_host::Kind;
using Pooling = cudnnPoolingStruct;

std::atomic<uint64_t> issued = 0;

bool fits(const Tensor& x, const Tensor& y, const Pooling& pooling) {
  bool fits = x.type == y.type && x.channels_last == y.channels_last && x.count == y.count &&
              pooling.count == x.count - 2 && x.sizes[0] == y.sizes[0] && x.sizes[1] == y.sizes[1];
  for (size_t i = 0; fits && i < 3; ++i)
    fits = y.sizes[2 + i] == (x.sizes[2 + i] + 2 * pooling.padding[i] - pooling.sizes[i]) / pooling.strides[i] + 1;
  return fits;
}

/// Calls body(x, y, counted) for each pair of elements where y reads x; `counted` is what means are divided by.
template <class Body>
void each_pair(const Tensor& x, const Tensor& y, const Pooling& pooling, const Body& body) {
  const bool counts_padding = pooling.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
  const int64_t in_places = x.sizes[2] * x.sizes[3] * x.sizes[4], out_places = y.sizes[2] * y.sizes[3] * y.sizes[4];
  for (int64_t o = 0; o < y.numel(); ++o) {
    std::array<int64_t, 3> begin{}, end{};
    int64_t rest = o % out_places, counted = 1;
    for (size_t i = 3; i-- > 0; rest /= y.sizes[2 + i]) {
      const int64_t first = rest % y.sizes[2 + i] * pooling.strides[i] - pooling.padding[i];
      begin[i] = std::max<int64_t>(first, 0);
      end[i] = std::min(first + pooling.sizes[i], x.sizes[2 + i]);
      counted *= counts_padding ? pooling.sizes[i] : end[i] - begin[i];
    }
    for (int64_t d = begin[0]; d < end[0]; ++d) {
      for (int64_t h = begin[1]; h < end[1]; ++h) {
        for (int64_t w = begin[2]; w < end[2]; ++w)
          body(o / out_places * in_places + (d * x.sizes[3] + h) * x.sizes[4] + w, o, counted);
      }
    }
  }
}

void forward(const Tensor& x, const void* x_data, const Tensor& y, void* y_data, const Pooling& pooling) {
  use_tensor(x, x_data, "x", Kind::read);
  use_tensor(y, y_data, "y", Kind::write);
  std::vector<double> values(static_cast<size_t>(y.numel()));
  each_pair(x, y, pooling, [&](int64_t i, int64_t o, int64_t counted) {
    values[static_cast<size_t>(o)] += read(x, x_data, i) / static_cast<double>(counted);
  });
  for (int64_t o = 0; o < y.numel(); ++o) write(y, y_data, o, values[static_cast<size_t>(o)]);
}

void backward(const Tensor& x, void* dx_data, const Tensor& y, const void* dy_data, const Pooling& pooling) {
  use_tensor(x, dx_data, "dx", Kind::write);
  use_tensor(y, dy_data, "dy", Kind::read);
  std::vector<double> sums(static_cast<size_t>(x.numel()));
  each_pair(x, y, pooling, [&](int64_t i, int64_t o, int64_t counted) {
    sums[static_cast<size_t>(i)] += read(y, dy_data, o) / static_cast<double>(counted);
  });
  for (int64_t i = 0; i < x.numel(); ++i) write(x, dx_data, i, sums[static_cast<size_t>(i)]);
}

}  // namespace

namespace cuda_host {
uint64_t poolings() { return issued; }
}  // namespace cuda_host

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling) { return make(pooling); }
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) { return drop(pooling); }
cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int count, const int sizes[], const int padding[],
                                          const int strides[]) {
  if (mode == CUDNN_POOLING_MAX)
    throw cuda_host::Finding("cuDNN: the largest of elements that are all -inf is finite, shard must not ask for it");
  if (count < 2 || count > 3 || nan != CUDNN_PROPAGATE_NAN) return CUDNN_STATUS_BAD_PARAM;
  *pooling = {mode, count};
  for (int i = 0; i < count; ++i) {
    const size_t to = static_cast<size_t>(3 - count + i);
    pooling->sizes[to] = sizes[i];
    pooling->padding[to] = padding[i];
    pooling->strides[to] = strides[i];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                  cudnnTensorDescriptor_t x_type, const void* x, const void* beta,
                                  cudnnTensorDescriptor_t y_type, void* y) {
  if (!fits(*x_type, *y_type, *pooling) || !overwrites(x_type->type, alpha, beta)) return CUDNN_STATUS_BAD_PARAM;
  ++issued;
  cuda_host::submit(handle->stream, [=, x_of = *x_type, y_of = *y_type, by = *pooling] {
    const cuda_host::DeviceAccess access;
    forward(x_of, x, y_of, y, by);
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void* alpha,
                                   cudnnTensorDescriptor_t y_type, const void* y, cudnnTensorDescriptor_t dy_type,
                                   const void* dy, cudnnTensorDescriptor_t x_type, const void* x, const void* beta,
                                   cudnnTensorDescriptor_t dx_type, void* dx) {
  if (!fits(*x_type, *y_type, *pooling) || !fits(*dx_type, *dy_type, *pooling) ||
      !overwrites(x_type->type, alpha, beta))
    return CUDNN_STATUS_BAD_PARAM;
  ++issued;
  cuda_host::submit(handle->stream,
                    [=, x_of = *x_type, dx_of = *dx_type, y_of = *y_type, dy_of = *dy_type, by = *pooling] {
                      const cuda_host::DeviceAccess access;
                      use_tensor(x_of, x, "x", Kind::read);
                      use_tensor(y_of, y, "y", Kind::read);
                      backward(dx_of, dx, dy_of, dy, by);
                    });
  return CUDNN_STATUS_SUCCESS;
}
