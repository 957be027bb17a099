// Replaces the CUDA backend in a build without CUDA; cmake/ShardCuda.cmake selects this or
// cuda_backend.cc.
#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/cuda_stream.h"

namespace shard {

std::optional<Backend> cuda_backend() { return std::nullopt; }

uintptr_t cuda_stream(int) { return 0; }

const char* cuda_status() { return SHARD_NO_CUDA_REASON; }

}  // namespace shard
