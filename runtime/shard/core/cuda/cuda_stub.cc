// Replaces the CUDA backend in a build without CUDA; cmake/ShardCuda.cmake selects this or
// cuda_backend.cc.
#include "shard/core/cuda/cuda_backend.h"

namespace shard {

std::optional<Backend> cuda_backend() { return std::nullopt; }

const char* cuda_status() { return SHARD_NO_CUDA_REASON; }

}  // namespace shard
