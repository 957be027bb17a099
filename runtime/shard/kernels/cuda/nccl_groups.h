// Groups of CUDA devices that exchange data by NCCL. In a build without NCCL, nccl_stub.cc implements this.
#pragma once

#include "shard/kernels/device_work.h"

namespace shard::cuda {

/// Sets the functions of groups, where the library was built with NCCL.
void add_nccl_groups(DeviceWork& work);

}  // namespace shard::cuda
