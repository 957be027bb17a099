// The stream of CUDA that this thread computes on, for kernels and libraries of others.
#pragma once

#include <cstdint>

#include "shard/core/export.h"

namespace shard {

/// The stream (a cudaStream_t) to which this thread issues its work on a device of CUDA now, and in whose order it frees memory. Threads share
/// it, but for ranks that are threads of one process. Throws Error(device) where the device cannot be used; 0 in a build without CUDA.
SHARD_API uintptr_t cuda_stream(int index);

}  // namespace shard
