// Collectives as point-to-point messages of MPI.
#pragma once

#include "shard/comm/mpi_channel.h"

namespace shard {

std::unique_ptr<Communicator> make_mpi_communicator(MpiChannel& channel, const std::vector<int>& members, int rank,
                                                    CommQueue& queue);

}  // namespace shard
