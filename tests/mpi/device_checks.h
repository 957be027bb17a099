// Checks of ranks that are processes with a device of the model of CUDA each, or share one.
#pragma once

namespace shard::test {

void device_checks();
/// Devices that exchange data by an MPI that takes their memory.
void device_memory();
void device_faults();

/// Has MPI say of itself whether it takes memory of CUDA (cuda_aware.cc). False where it has no function for that.
bool set_mpi_takes_cuda(bool takes);

}  // namespace shard::test
