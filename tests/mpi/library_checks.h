// Checks of the whole library on the MPI world: a sample of the tests that other folders run on threads.
#pragma once

namespace shard::test {

/// Runs all checks as one process of a job of 4; throws at the first wrong result.
void library_checks();

}  // namespace shard::test
