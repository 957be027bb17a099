// Checks of ranks that are processes with a device of the model of CUDA each, which exchange data by NCCL.
#pragma once

namespace shard::test {

void device_checks();
void device_faults();

}  // namespace shard::test
