// The cost of recording and differentiating for tensors of 4 floats. The peer's calls are in
// peer_bench.cc.
#include <benchmark/benchmark.h>

#include "dispatch_cases.h"

namespace {

using namespace shard;
using namespace shard::bench;

void multiply_plain(benchmark::State& state) {
  const DensePair p;
  for (auto _ : state) benchmark::DoNotOptimize(multiply(p.x, p.y));
}
BENCHMARK(multiply_plain)->Name("shard/multiply");

/// The step is freed with the result.
void multiply_recorded(benchmark::State& state) {
  const DensePair p;
  p.x.set_requires_grad(true);
  for (auto _ : state) benchmark::DoNotOptimize(multiply(p.x, p.y));
}
BENCHMARK(multiply_recorded)->Name("shard/multiply_recorded");

/// The gradient is added to the leaf's.
void mul_sum_backward(benchmark::State& state) {
  const DensePair p;
  p.x.set_requires_grad(true);
  for (auto _ : state) sum(multiply(p.x, p.y)).backward();
  benchmark::DoNotOptimize(p.x.grad());
}
BENCHMARK(mul_sum_backward)->Name("shard/mul_sum_backward");

}  // namespace
