// The errors of a build without MPI when an MPI world is requested. Compiled in such builds only.
#include <catch2/catch.hpp>

#include "support/mesh_run.h"

namespace no_mpi_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("36: without MPI an MPI world is refused, with the reason and what to do") {
  const std::string text = error_of([] { World::mpi(); }, ErrorCode::communication);
  CHECK(text.find("built without MPI: ") != std::string::npos);
  CHECK(text.find("SHARD_MPI=ON") != std::string::npos);
}

}  // namespace no_mpi_test
