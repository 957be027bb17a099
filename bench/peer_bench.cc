// The calls of dispatch_bench.cc with libtorch, without autograd. Linked into dispatch_bench, so
// that both run in one process.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

namespace {

at::Tensor counting(at::IntArrayRef sizes) {
  return at::arange(4, at::kFloat).repeat(sizes.size() == 1 ? 1 : 4).view(sizes);
}

void peer_add(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = counting({4});
  const at::Tensor y = counting({4});
  for (auto _ : state) benchmark::DoNotOptimize(at::add(x, y));
}
BENCHMARK(peer_add)->Name("peer/add");

void peer_add_inplace(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  at::Tensor x = counting({4});
  const at::Tensor y = counting({4});
  for (auto _ : state) benchmark::DoNotOptimize(&x.add_(y));
}
BENCHMARK(peer_add_inplace)->Name("peer/add_");

void peer_view(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = counting({4});
  for (auto _ : state) benchmark::DoNotOptimize(x.view({2, 2}));
}
BENCHMARK(peer_view)->Name("peer/view");

void peer_matmul(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = counting({4, 4});
  const at::Tensor y = counting({4, 4});
  for (auto _ : state) benchmark::DoNotOptimize(at::matmul(x, y));
}
BENCHMARK(peer_matmul)->Name("peer/matmul_4x4");

void peer_multiply(benchmark::State& state) {
  const at::Tensor x = counting({4});
  const at::Tensor y = counting({4});
  for (auto _ : state) benchmark::DoNotOptimize(at::mul(x, y));
}
BENCHMARK(peer_multiply)->Name("peer/multiply");

void peer_multiply_recorded(benchmark::State& state) {
  const at::Tensor x = counting({4}).set_requires_grad(true);
  const at::Tensor y = counting({4});
  for (auto _ : state) benchmark::DoNotOptimize(at::mul(x, y));
}
BENCHMARK(peer_multiply_recorded)->Name("peer/multiply_recorded");

void peer_mul_sum_backward(benchmark::State& state) {
  const at::Tensor x = counting({4}).set_requires_grad(true);
  const at::Tensor y = counting({4});
  for (auto _ : state) at::sum(at::mul(x, y)).backward();
  benchmark::DoNotOptimize(x.grad());
}
BENCHMARK(peer_mul_sum_backward)->Name("peer/mul_sum_backward");

}  // namespace
