// Checks of the whole library on the MPI world: what the tests of other folders do on threads, a sample of each.
#pragma once

namespace shard::test {

/// Runs them all as one process of a job of 4; throws at the first wrong result.
void library_checks();

}  // namespace shard::test
