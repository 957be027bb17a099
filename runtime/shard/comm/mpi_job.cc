#include <cstdlib>

#include "shard/comm/mpi.h"

namespace shard {

int mpi_job_size() {
  // Set by the launchers of Open MPI, of MPICH and its derivatives, and of MVAPICH.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

}  // namespace shard
