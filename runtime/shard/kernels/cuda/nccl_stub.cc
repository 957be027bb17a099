// Stands in for nccl.cc in a build without NCCL; cmake/ShardCuda.cmake chooses between the two.
#include "shard/kernels/cuda/nccl_groups.h"

namespace shard::cuda {

void add_nccl_groups(DeviceWork&) {}

}  // namespace shard::cuda
