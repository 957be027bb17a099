// Replaces the MPI transport in a build without MPI; cmake/ShardMpi.cmake selects this or mpi.cc.
#include "shard/comm/mpi.h"
#include "shard/core/error.h"

namespace shard {

std::unique_ptr<MpiHub> MpiHub::make(const CommOptions&, std::shared_ptr<PartialFailures>) {
  shard::fail(ErrorCode::communication,
              "no MPI world: {}. Configure with SHARD_MPI=ON where MPI is installed, or use World::local",
              SHARD_NO_MPI_REASON);
}

}  // namespace shard
