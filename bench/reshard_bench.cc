// Reshards of large tensors in a local world of 2 ranks, compared with memcpy by as many threads
// over the bytes that each rank must write, alternating in one run; and the time of planning.
// Prints rows of the tables in docs/performance.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "shard/api/layout.h"
#include "shard/reshard/plan.h"

namespace {

using namespace shard;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int kRounds = 21;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// One transition: median times of the reshard and of the memcpy, both from when all ranks are
/// ready to when all are done.
void bench_move(const char* name, const Dims& dims, const char* from, const char* to) {
  const auto* mesh = ProcessMesh::make({kRanks}, {}, {"p"});
  std::vector<double> moves, copies;
  std::barrier together(kRanks);
  World::local(kRanks)->run([&](Rank& rank) {
    const Tensor start =
        distribute(Tensor(DenseTensor::allocate(kCpu, {dims, DType::float32})), DistSpec::parse(mesh, from));
    const DistSpec* spec = DistSpec::parse(mesh, to);
    const size_t bytes = shard_box(spec->layout(), dims, *mesh->coordinate(rank.id())).dims.numel() * 4;
    std::vector<char> source(bytes, 1), target(bytes, 2);
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      auto begin = Clock::now();
      {
        const Tensor moved = reshard(start, spec);
        together.arrive_and_wait();
        if (rank.id() == 0) moves.push_back(us_since(begin));
      }
      together.arrive_and_wait();
      begin = Clock::now();
      std::memcpy(target.data(), source.data(), bytes);
      together.arrive_and_wait();
      if (rank.id() == 0) copies.push_back(us_since(begin));
    }
  });
  const double move = median(moves);
  const double copy = median(copies);
  fmt::print("| {} | {} MB | {:.0f} us | {:.0f} us | {:.2f} |\n", name, dims.numel() * 4 >> 20, move, copy,
             copy / move);
}

/// A random layout of a tensor with `rank` dims; one axis in ten is pending.
const DistSpec* random_layout(const ProcessMesh* mesh, int rank, std::mt19937& random) {
  Layout layout(mesh, rank);
  std::vector<int> axes;
  for (int axis = 0; axis < mesh->rank(); ++axis) axes.push_back(axis);
  std::shuffle(axes.begin(), axes.end(), random);
  for (const int axis : axes) {
    const int choice = static_cast<int>(random() % 10);
    if (choice == 9) layout.partial[static_cast<size_t>(axis)] = ReduceType::sum;
    else if (choice > 2) layout.dims[random() % static_cast<size_t>(rank)].push_back(axis);
  }
  return DistSpec::make(layout);
}

void bench_planning(const std::vector<int>& shape, MeshCosts costs = {}, const char* note = "") {
  const auto* mesh = ProcessMesh::make(shape, {}, {}, std::move(costs));
  std::mt19937 random(7);
  std::vector<double> times;
  for (int i = 0; i < 600; ++i) {
    const int rank = 2 + static_cast<int>(random() % 3);
    Dims dims;
    for (int d = 0; d < rank; ++d) dims.push_back(1 + static_cast<int64_t>(random() % 2048));
    const DistSpec* from = random_layout(mesh, rank, random);
    const DistSpec* to = random_layout(mesh, rank, random);
    double best = 1e9;  // of three: the time of the search, not of other activity on the machine
    for (int k = 0; k < 3; ++k) {
      const auto begin = Clock::now();
      plan_reshard({dims, DType::float32}, from, to);
      best = std::min(best, us_since(begin));
    }
    times.push_back(best);
  }
  fmt::print("| {}{} | {:.1f} us | {:.1f} us |\n", fmt::join(shape, "x"), note, median(times),
             *std::max_element(times.begin(), times.end()));
}

}  // namespace

int main() {
  fmt::print("| move, 2 ranks, float32 | tensor | reshard | memcpy | memcpy / reshard |\n|---|---|---|---|---|\n");
  for (const int64_t rows : {2048, 8192}) {
    const Dims dims{rows, 2048};
    const Dims cube{rows / 16, 256, 128};
    bench_move("slice, dim 0", dims, "-, -", "p, -");
    bench_move("slice, dim 1", dims, "-, -", "-, p");
    bench_move("gather, dim 0", dims, "p, -", "-, -");
    bench_move("gather, dim 1", dims, "-, p", "-, -");
    bench_move("all-to-all, dim 0 to 1", dims, "p, -", "-, p");
    bench_move("all-to-all, dim 1 to 0", dims, "-, p", "p, -");
    bench_move("all-to-all, dim 1 to 2 of 3", cube, "-, p, -", "-, -, p");
    bench_move("gather, dim 1 of 3", cube, "-, p, -", "-, -, -");
  }
  fmt::print("\n| planning, random layouts of 2 to 4 dims | median | worst |\n|---|---|---|\n");
  bench_planning({2, 4});
  bench_planning({8, 8});
  bench_planning({8, 8}, {.axes = {{20000, 0.4}, {5000, 0.05}}}, ", axes of unlike cost");
  bench_planning({64, 8, 8});
  bench_planning({2, 2, 2, 2});
  bench_planning({8, 4, 4, 2});
  bench_planning({8, 4, 4, 2}, {.axes = {{20000, 0.4}, {5000, 0.05}, {5000, 0.05}, {5000, 0.05}}}, ", one slow axis");
}
