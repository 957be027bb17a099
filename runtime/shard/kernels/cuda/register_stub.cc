// Stands in for register.cc in a build without CUDA; cmake/ShardCuda.cmake chooses between the two.
#include "shard/kernels/cuda/register.h"

namespace shard {

void register_cuda_kernels() {}

}  // namespace shard
