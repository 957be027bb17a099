// Numbers that the host needs from a device, for results whose shape depends on data.
#pragma once

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/cuda/data_error.cuh"
#include "shard/core/waiting.h"

namespace shard::cuda {

/// Copies to the host, and waits for all work of this thread. Throws what kernels found in their data.
template <class T>
void read_back(T* to, const T* from, int64_t count) {
  if (device_watch() != nullptr)
    wait_for_stream();  // a copy to memory that is not pinned waits without a look at other ranks
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T), cudaMemcpyDeviceToHost, stream()),
        "cudaMemcpyAsync (device to host)");
  wait_for_stream();
}

}  // namespace shard::cuda
