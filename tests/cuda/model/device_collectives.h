// Collectives between devices of the model of CUDA, for ranks that are threads or processes.
#pragma once

#include "shard/shard.h"

namespace shard::test {

/// The options of a world whose ranks have a device each.
WorldOptions own_devices(int ranks);

/// Small integers, of which all reductions are exact.
DenseTensor small_numbers(int64_t count, DType dtype, int seed);

/// How data gets from a device to others: by NCCL, without a wait of the host for the device; or by an MPI that takes the memory of
/// devices, without a copy on the host.
enum class Transport : uint8_t { nccl, mpi };

/// Runs each collective on the rank's device and on the host, and compares. Throws unless those on devices are done in this way.
void check_collectives_between_devices(Rank& rank, Transport transport = Transport::nccl);

/// An all-reduce of float32 over the whole world.
Work sum_over_world(Rank& rank, const DenseTensor& data);

}  // namespace shard::test
