// Makes one kind of call N times and nothing else: dispatch_loop NAME N. The difference of two N under callgrind is the
// number of instructions per call, which a busy machine does not change.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "dispatch_cases.h"

namespace {

using namespace shard;
using namespace shard::bench;

template <class Call>
void repeat(int64_t calls, const Call& call) {
  for (int64_t i = 0; i < calls; ++i) call();
}

void run_dense(std::string_view name, int64_t calls) {
  DensePair p;
  if (name == "add") repeat(calls, [&] { add(p.x, p.y); });
  else if (name == "add_") repeat(calls, [&] { add_(p.x, p.y); });
  else if (name == "view") repeat(calls, [&] { reshape(p.x, {2, 2}); });
}

void run_autograd(std::string_view name, int64_t calls) {
  const DensePair p;
  p.x.set_requires_grad(name != "multiply");
  if (name == "mul_sum_backward") repeat(calls, [&] { sum(multiply(p.x, p.y)).backward(); });
  else repeat(calls, [&] { multiply(p.x, p.y); });
}

void run_dist(std::string_view name, int64_t calls) {
  World::local(1)->run([&](Rank& rank) {
    const DistPair p(rank);
    if (name == "dist_add") repeat(calls, [&] { add(p.x, p.y); });
    else if (name == "dist_view") repeat(calls, [&] { reshape(p.x, p.halves); });
  });
}

void run_matmul(int64_t calls) {
  const Tensor x = counting({4, 4});
  const Tensor y = counting({4, 4});
  repeat(calls, [&] { matmul(x, y); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr,
                 "usage: dispatch_loop "
                 "add|add_|view|matmul_4x4|multiply|multiply_recorded|mul_sum_backward|dist_add|dist_view CALLS\n");
    return 2;
  }
  const std::string_view name = argv[1];
  const int64_t calls = std::atoll(argv[2]);
  if (name == "matmul_4x4") run_matmul(calls);
  else if (name.starts_with("mul")) run_autograd(name, calls);
  else if (name.starts_with("dist_")) run_dist(name, calls);
  else run_dense(name, calls);
  return 0;
}
