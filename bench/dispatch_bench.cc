// The cost of one small call: plain, and distributed without communication. The peer's calls are in
// peer_bench.cc.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <ctime>

#include "dispatch_cases.h"

namespace {

using namespace shard;
using namespace shard::bench;
using Clock = std::chrono::steady_clock;

void dense_add(benchmark::State& state) {
  const DensePair p;
  for (auto _ : state) benchmark::DoNotOptimize(add(p.x, p.y));
}
BENCHMARK(dense_add)->Name("shard/add");

void dense_add_inplace(benchmark::State& state) {
  DensePair p;
  for (auto _ : state) benchmark::DoNotOptimize(&add_(p.x, p.y));
}
BENCHMARK(dense_add_inplace)->Name("shard/add_");

void dense_reshape(benchmark::State& state) {
  const DensePair p;
  for (auto _ : state) benchmark::DoNotOptimize(reshape(p.x, {2, 2}));
}
BENCHMARK(dense_reshape)->Name("shard/view");

void dense_matmul(benchmark::State& state) {
  const Tensor x = counting({4, 4});
  const Tensor y = counting({4, 4});
  for (auto _ : state) benchmark::DoNotOptimize(matmul(x, y));
}
BENCHMARK(dense_matmul)->Name("shard/matmul_4x4");

/// CPU seconds of a thread in one kind of call, and wall-clock seconds.
struct Times {
  double cpu = 0;
  double wall = 0;
};
struct BothTimes {
  Times dist;
  Times dense;
};

/// The CPU time of this thread so far: waiting for a core does not count.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Call>
void time_calls(int64_t calls, const Call& call, Times& times) {
  const auto begin = Clock::now();
  const double cpu_begin = thread_seconds();
  for (int64_t i = 0; i < calls; ++i) call();
  times.cpu += thread_seconds() - cpu_begin;
  times.wall += std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The two kinds of call alternate in short intervals, so that a busy machine slows both alike.
template <class Dist, class Dense>
BothTimes take_turns(int64_t calls, const Dist& dist, const Dense& dense) {
  constexpr int64_t kStretch = 1000;
  BothTimes times;
  for (int64_t done = 0; done < calls; done += kStretch) {
    const int64_t n = std::min(kStretch, calls - done);
    time_calls(n, dist, times.dist);
    time_calls(n, dense, times.dense);
  }
  return times;
}

/// Runs `measure(rank, start, calls)` on every rank at once. The time is the CPU time of rank 0 in
/// the distributed calls. Counters, in nanoseconds per call: the plain call on the same local
/// shards, the difference, and that difference in wall-clock time, which also counts waiting for a
/// core.
template <class Measure>
void on_ranks(benchmark::State& state, const Measure& measure) {
  const auto ranks = static_cast<int>(state.range(0));
  const auto calls = static_cast<int64_t>(state.max_iterations);
  const std::unique_ptr<World> world = World::local(ranks);
  std::barrier start(ranks);
  BothTimes first;
  while (state.KeepRunningBatch(calls)) {
    world->run([&](Rank& rank) {
      const BothTimes times = measure(rank, start, calls);
      if (rank.id() == 0) first = times;
    });
    state.SetIterationTime(first.dist.cpu);
  }
  const double scale = 1e9 / static_cast<double>(calls);
  state.counters["dense_ns"] = first.dense.cpu * scale;
  state.counters["over_dense_ns"] = (first.dist.cpu - first.dense.cpu) * scale;
  state.counters["wall_over_dense_ns"] = (first.dist.wall - first.dense.wall) * scale;
}

void dist_add(benchmark::State& state) {
  on_ranks(state, [](Rank& rank, std::barrier<>& start, int64_t calls) {
    const DistPair p(rank);
    const Tensor x = local(p.x);
    const Tensor y = local(p.y);
    benchmark::DoNotOptimize(add(p.x, p.y));  // creates the plan
    start.arrive_and_wait();
    return take_turns(
        calls, [&] { benchmark::DoNotOptimize(add(p.x, p.y)); }, [&] { benchmark::DoNotOptimize(add(x, y)); });
  });
}
BENCHMARK(dist_add)->Name("shard/dist_add")->ArgName("ranks")->Arg(1)->Arg(2)->UseManualTime();

void dist_reshape(benchmark::State& state) {
  on_ranks(state, [](Rank& rank, std::barrier<>& start, int64_t calls) {
    const DistPair p(rank);
    const Tensor x = local(p.x);
    const IntArray halves{2, 2};
    benchmark::DoNotOptimize(reshape(p.x, p.halves));
    start.arrive_and_wait();
    return take_turns(
        calls, [&] { benchmark::DoNotOptimize(reshape(p.x, p.halves)); },
        [&] { benchmark::DoNotOptimize(reshape(x, halves)); });
  });
}
BENCHMARK(dist_reshape)->Name("shard/dist_view")->ArgName("ranks")->Arg(1)->Arg(2)->UseManualTime();

}  // namespace

BENCHMARK_MAIN();
