// What the model of cuDNN has in common: the handle, tensors, and access to their elements.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string>

#include "access.h"
#include "include/cudnn.h"
#include "memory.h"
#include "shard/core/float16.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};
/// Batch, channels, and up to three dims of space; the others are 1.
struct cudnnTensorStruct {
  cudnnDataType_t type;
  int count = 0;
  std::array<int64_t, 5> sizes{1, 1, 1, 1, 1};
  bool channels_last = false;

  int64_t numel() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }
};

namespace cudnn_host {

using Tensor = cudnnTensorStruct;

/// Where element i of those in the order of the sizes is.
inline int64_t place_of(const Tensor& tensor, int64_t i) {
  if (!tensor.channels_last) return i;
  const int64_t channels = tensor.sizes[1], places = tensor.numel() / (tensor.sizes[0] * channels);
  return (i / (places * channels) * places + i % places) * channels + i / places % channels;
}

inline double read(const Tensor& tensor, const void* data, int64_t i) {
  i = place_of(tensor, i);
  switch (tensor.type) {
    case CUDNN_DATA_FLOAT: return static_cast<double>(static_cast<const float*>(data)[i]);
    case CUDNN_DATA_DOUBLE: return static_cast<const double*>(data)[i];
    case CUDNN_DATA_HALF: return static_cast<double>(static_cast<float>(static_cast<const shard::float16*>(data)[i]));
    case CUDNN_DATA_BFLOAT16:
      return static_cast<double>(static_cast<float>(static_cast<const shard::bfloat16*>(data)[i]));
  }
  return 0;
}
inline void write(const Tensor& tensor, void* data, int64_t i, double value) {
  i = place_of(tensor, i);
  switch (tensor.type) {
    case CUDNN_DATA_FLOAT: static_cast<float*>(data)[i] = static_cast<float>(value); break;
    case CUDNN_DATA_DOUBLE: static_cast<double*>(data)[i] = value; break;
    case CUDNN_DATA_HALF: static_cast<shard::float16*>(data)[i] = shard::float16(static_cast<float>(value)); break;
    case CUDNN_DATA_BFLOAT16:
      static_cast<shard::bfloat16*>(data)[i] = shard::bfloat16(static_cast<float>(value));
      break;
  }
}
inline size_t size_of(cudnnDataType_t type) { return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2; }

/// Descriptors have their dims of space last: those of two dims are 1 before them.
inline void set_sizes(Tensor& tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int count, const int sizes[]) {
  tensor.type = type;
  tensor.channels_last = format == CUDNN_TENSOR_NHWC;
  tensor.count = count;
  tensor.sizes = {sizes[0], sizes[1], 1, 1, 1};
  for (int i = 2; i < count; ++i) tensor.sizes[static_cast<size_t>(5 - count + i)] = sizes[i];
}

/// Memory that a call uses (cuda_host::use_range), at an address that all kernels of cuDNN take.
inline void use_bytes(const void* data, size_t bytes, const char* name, cuda_host::Kind kind) {
  cuda_host::use_range(std::string("cuDNN: ") + name, data, bytes, kind);
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
    throw cuda_host::Finding(std::string("cuDNN: the address of ") + name + " is not a multiple of 16");
}
inline void use_tensor(const Tensor& tensor, const void* data, const char* name, cuda_host::Kind kind) {
  use_bytes(data, static_cast<size_t>(tensor.numel()) * size_of(tensor.type), name, kind);
}

/// The status that a test wants of this call of a function (cuda_host::fail_cudnn).
cudnnStatus_t wanted_status(const std::string& function);

template <class T>
cudnnStatus_t make(T** object) {
  *object = new T{};
  return CUDNN_STATUS_SUCCESS;
}
template <class T>
cudnnStatus_t drop(T* object) {
  delete object;
  return CUDNN_STATUS_SUCCESS;
}

/// Whether the factors of a call are 1 and 0, as shard has them.
inline bool overwrites(cudnnDataType_t type, const void* alpha, const void* beta) {
  const auto factor = [&](const void* value) {
    return type == CUDNN_DATA_DOUBLE ? *static_cast<const double*>(value)
                                     : static_cast<double>(*static_cast<const float*>(value));
  };
  return factor(alpha) == 1 && factor(beta) == 0;
}

}  // namespace cudnn_host
