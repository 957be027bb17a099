// Tests that run as the processes of an MPI job. usage: mpirun -n 4 shard_mpi_tests TEST, where TEST is a name of
// the table below.
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "comm/conformance.h"
#include "mpi/device_checks.h"
#include "mpi/library_checks.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;
using namespace std::chrono_literals;

namespace {

void collectives() { World::mpi()->run(check_collectives); }

void collectives_in_pieces() {
  // Splits messages like counts above 2^31, in debug mode as well.
  World::mpi({.debug_comm = true, .message_limit = 3000})->run(check_collectives);
}

void all_faults() {
  for (const Fault& fault : faults()) check_fault(fault, [](WorldOptions options) { return World::mpi(options); });
}

void sum_of_ranks(Rank& rank) {
  int32_t word = rank.id();
  rank.communicator(ProcessMesh::make({4}), 0).all_reduce({"sum", "x"}, &word, 1, DType::int32, ReduceType::sum).wait();
  check(word == 6, "the sum of ranks");
}

/// Without debug mode, ranks that diverge still never mix their data: they time out, and say where the others are.
void divergence_without_debug_mode() {
  auto world = World::mpi({.timeout = 400ms});
  std::string text;
  try {
    world->run([](Rank& rank) {
      const auto* line = ProcessMesh::make({4}, {}, {"p"});
      int32_t word = 1;
      const ReduceType type = rank.id() == 2 ? ReduceType::max : ReduceType::sum;
      rank.communicator(line, 0).all_reduce({"sum", "x"}, &word, 1, DType::int32, type).wait();
    });
  } catch (const Error& error) {
    text = error.what();
    // Others may get the error before their own timeout.
    if (error.code() == ErrorCode::timeout) check_contains(text, "Last on this rank: #0 all_reduce");
  }
  check_contains(text, "never joined #0 all_reduce for sum argument 'x'");
}

/// The others learn of it long before their timeout.
void a_rank_ends_early() {
  auto world = World::mpi({.timeout = 60s});
  const auto begin = std::chrono::steady_clock::now();
  std::string text;
  try {
    world->run([](Rank& rank) {
      sum_of_ranks(rank);
      if (rank.id() != 2) sum_of_ranks(rank);
    });
  } catch (const Error& error) { text = error.what(); }
  check_contains(text, "rank 2 never joined #1 all_reduce for sum argument 'x', and has ended its program");
  check(std::chrono::steady_clock::now() - begin < 30s, "before the timeout");
}

void worlds() {
  auto world = World::from_environment(2);
  check(world->size() == 4 && world->local_ranks().size() == 1, "mpirun makes an MPI world of its processes");
  const int me = world->local_ranks().front();
  check(world->rank(me).id() == me, "the rank of this process");
  check_contains(error_of([&] { world->rank((me + 1) % 4); }, ErrorCode::wrong_rank), "does not run in this process");
  // Two worlds of one job do not affect each other.
  auto other = World::mpi();
  other->run([&](Rank& rank) { check(&rank.world() == other.get(), "the other world"); });
  for (int i = 0; i < 2; ++i) world->run(sum_of_ranks);
  check(world->rank(me).stats().collectives == 2, "counters go on from run to run");
}

/// MPI is initialised by the library, and finalised when the process exits.
void a_world_ends() { World::mpi()->run(sum_of_ranks); }

/// Signals job_fails.cmake that the job has started: a job that mpirun cannot start fails, too.
void tell_started(const Rank& rank) {
  fmt::print(stderr, "rank {} of {} is about to fail\n", rank.id(), rank.world().size());
  std::fflush(stderr);
}

/// A rank that dies: either mpirun kills the job, or the others time out.
void a_rank_dies() {
  World::mpi({.timeout = 5s})->run([](Rank& rank) {
    if (rank.id() == 2) {
      tell_started(rank);
      _exit(3);
    }
    sum_of_ranks(rank);
  });
}

/// MPI is initialised by the library here, and not finalised, or the job would hang.
void a_rank_throws() {
  World::mpi()->run([](Rank& rank) {
    if (rank.id() == 2) {
      tell_started(rank);
      throw std::runtime_error("disk on fire");
    }
    sum_of_ranks(rank);
  });
}

struct Test {
  void (*run)();
  bool own_mpi = true;  // MPI is initialised and finalised here: the job ends well after worlds that failed on purpose
};

const std::map<std::string, Test> kTests = {
    {"collectives", {collectives}},
    {"collectives_in_pieces", {collectives_in_pieces}},
    {"faults", {all_faults}},
    {"divergence", {divergence_without_debug_mode}},
    {"a_rank_ends_early", {a_rank_ends_early}},
    {"worlds", {worlds}},
    {"library", {library_checks}},
#ifdef SHARD_CUDA_MODEL
    {"devices", {device_checks}},
    {"device_memory", {device_memory}},
    {"device_faults", {device_faults}},
#endif
    {"a_world_ends", {a_world_ends, false}},
    {"a_rank_dies", {a_rank_dies, false}},
    {"a_rank_throws", {a_rank_throws, false}},
};

}  // namespace

int main(int argc, char** argv) {
  const auto test = argc > 1 ? kTests.find(argv[1]) : kTests.end();
  if (test == kTests.end()) return 2;
  if (test->second.own_mpi) MPI_Init(&argc, &argv);
  int failed = 0;
  try {
    test->second.run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{} process {}: {}\n", argv[1], getpid(), error.what());
    failed = 1;
  }
  if (test->second.own_mpi) {
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
  }
  return failed;
}
