// Collectives through shard beside MPI's own blocking calls for the same bytes, in turns, as
// processes of one MPI job. Rank 0 prints medians over turns of the time of the slowest rank.
// usage: mpirun -n N mpi_bench [LARGEST_BYTES]
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "shard/core/trace.h"
#include "shard/dist/world.h"

using namespace shard;

namespace {

constexpr int64_t kSmallest = 64 << 10;
constexpr int64_t kTimePerCase = 100'000'000;  // ns
constexpr int kFewestTurns = 7;
constexpr int kMostTurns = 401;

/// One collective on `bytes` in total (of the gathered, exchanged, reduced or sent buffer), by MPI
/// and by shard.
struct Case {
  const char* name;
  std::function<void(int64_t bytes)> raw;
  std::function<void(int64_t bytes)> ours;
};

/// Nanoseconds of `run` on the slowest rank.
int64_t slowest(const std::function<void()>& run) {
  MPI_Barrier(MPI_COMM_WORLD);
  const int64_t begin = now_ns();
  run();
  int64_t time = now_ns() - begin;
  MPI_Allreduce(MPI_IN_PLACE, &time, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return time;
}

double median(std::vector<int64_t> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  return static_cast<double>(times[times.size() / 2]) / 1e3;
}

void measure(const Case& each, int64_t bytes, bool prints) {
  std::vector<int64_t> raw;
  std::vector<int64_t> ours;
  const auto turn = [&](bool raw_first) {
    for (const bool is_raw : {raw_first, !raw_first})
      (is_raw ? raw : ours).push_back(slowest([&] { (is_raw ? each.raw : each.ours)(bytes); }));
  };
  for (int i = 0; i < 3; ++i) turn(i % 2 == 0);  // warms both up
  const int64_t pair = raw.back() + ours.back();
  const auto turns =
      static_cast<int>(std::clamp<int64_t>(kTimePerCase / std::max<int64_t>(pair, 1), kFewestTurns, kMostTurns));
  raw.clear();
  ours.clear();
  for (int i = 0; i < turns; ++i) turn(i % 2 == 0);
  if (prints)
    fmt::print("{:<16} {:>9} KiB {:>12.1f} {:>12.1f} {:>8.2f} {:>7}\n", each.name, bytes >> 10, median(raw),
               median(ours), median(raw) / median(ours), turns);
}

void run(Rank& rank, int64_t largest) {
  const int n = rank.world().size();
  Communicator& all = rank.communicator(ProcessMesh::make({n}), 0);
  std::vector<char> send(static_cast<size_t>(largest), 1);
  std::vector<char> receive(static_cast<size_t>(largest), 2);
  const auto sizes = [n](int64_t each) { return std::vector<int64_t>(static_cast<size_t>(n), each); };
  const auto floats = [](int64_t bytes) { return static_cast<int>(bytes / 4); };
  const CommCause cause{"bench", "x"};
  const std::vector<Case> cases = {
      {"all_gather",
       [&](int64_t b) {
         MPI_Allgather(send.data(), static_cast<int>(b / n), MPI_BYTE, receive.data(), static_cast<int>(b / n),
                       MPI_BYTE, MPI_COMM_WORLD);
       },
       [&](int64_t b) { all.all_gather(cause, send.data(), receive.data(), sizes(b / n)).wait(); }},
      {"all_to_all",
       [&](int64_t b) {
         MPI_Alltoall(send.data(), static_cast<int>(b / n), MPI_BYTE, receive.data(), static_cast<int>(b / n), MPI_BYTE,
                      MPI_COMM_WORLD);
       },
       [&](int64_t b) { all.all_to_all(cause, send.data(), sizes(b / n), receive.data(), sizes(b / n)).wait(); }},
      {"all_reduce",
       [&](int64_t b) { MPI_Allreduce(MPI_IN_PLACE, receive.data(), floats(b), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); },
       [&](int64_t b) { all.all_reduce(cause, receive.data(), floats(b), DType::float32, ReduceType::sum).wait(); }},
      {"reduce_scatter",
       [&](int64_t b) {
         MPI_Reduce_scatter_block(send.data(), receive.data(), floats(b) / n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
       },
       [&](int64_t b) {
         all.reduce_scatter(cause, send.data(), receive.data(), sizes(floats(b) / n), DType::float32, ReduceType::sum)
             .wait();
       }},
      {"broadcast", [&](int64_t b) { MPI_Bcast(receive.data(), static_cast<int>(b), MPI_BYTE, 0, MPI_COMM_WORLD); },
       [&](int64_t b) { all.broadcast(cause, receive.data(), b, 0).wait(); }},
  };
  if (rank.id() == 0)
    fmt::print("{} processes\n{:<16} {:>13} {:>12} {:>12} {:>8} {:>7}\n", n, "collective", "bytes", "MPI us",
               "shard us", "ratio", "turns");
  for (const Case& each : cases) {
    for (int64_t bytes = kSmallest; bytes <= largest; bytes *= 4) {
      // The same finite numbers each time: repeated reductions in place must not produce denormal
      // or infinite ones, which are slow.
      std::fill(receive.begin(), receive.end(), char{0});
      measure(each, bytes, rank.id() == 0);
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const int64_t largest = argc > 1 ? std::atoll(argv[1]) : int64_t{64} << 20;
  World::mpi()->run([largest](Rank& rank) { run(rank, largest); });
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "mpi_bench: {}\n", error.what());
  return 1;
}
