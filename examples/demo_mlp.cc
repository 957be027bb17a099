// A two-layer MLP block on a 2x2 mesh: prints what each call did to layouts and buffers, compares
// with the same program on one rank, and writes a trace. usage: demo_mlp [TRACE.json], or mpirun -n
// 4 demo_mlp [TRACE.json] for 4 processes
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include <shard/shard.h>

#include "call_table.h"

using namespace shard;

namespace {

constexpr int64_t kBatch = 8, kModel = 6, kHidden = 8, kHeads = 2;
constexpr int kSteps = 3;

/// Small values that differ from element to element.
Tensor values(const Dims& dims, float phase) {
  std::vector<float> data(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < data.size(); ++i) data[i] = 0.5f * std::sin(0.7f * static_cast<float>(i) + phase);
  return Tensor::from_data(data, dims);
}

/// All tensors of the program: plain, or distributed by `place`.
struct Model {
  template <class Place>
  explicit Model(Place place)
      : x(place(values({kBatch, kModel}, 0.1f), "dp, -")), target(place(values({kBatch, kModel}, 2.0f), "dp, -")),
        w1(place(values({kModel, kHidden}, 0.5f), "-, tp")),  // column-parallel
        w2(place(values({kHidden, kModel}, 1.5f), "tp, -")),  // row-parallel
        mean(place(values({kModel}, 0.0f), "dp")),            // running statistics, sharded differently from the data
        variance(place(Tensor::from_data(std::vector<float>(kModel, 1.0f), {kModel}), "dp")),
        gain(place(Tensor::from_data(std::vector<float>(kModel, 1.0f), {kModel}), "-")),
        shift(place(Tensor::from_data(std::vector<float>(kModel, 0.0f), {kModel}), "-")),
        rate(place(Tensor::from_data<float>({0.1f}, {1}), "-")) {}

  /// One step of training; the gradients are written by hand. Returns the normalised output.
  Tensor step() {
    Tensor hidden = matmul(x, w1);
    relu_(hidden);
    // Into heads and back: the sharded dim is split so that every rank keeps its elements.
    const Tensor heads = reshape(hidden, {kBatch, kHeads, kHidden / kHeads});
    const Tensor joined = reshape(heads, {kBatch, kHidden});
    const Tensor update = matmul(joined, w2);  // partial sums over tp
    Tensor out = assign(x);
    add_(out, update);  // the residual, in place
    const Tensor normal =
        std::get<0>(batch_norm(out, mean, variance, gain, shift, false, 0.9f, 1e-5f, "NCHW", false, false));

    // Loss: half the mean square of out - target.
    const Tensor d_out = scale(subtract(out, target), 1.0 / (kBatch * kModel), 0.0);
    const Tensor d_w2 = matmul(joined, d_out, true, false);
    const Tensor active = clip(scale(hidden, 1e30, 0.0), 0.0, 1.0);  // 1 where relu passed the value
    const Tensor d_hidden = multiply(matmul(d_out, w2, false, true), active);
    const Tensor d_w1 = matmul(x, d_hidden, true, false);
    Tensor none;
    sgd_(w1, rate, d_w1, none);
    sgd_(w2, rate, d_w2, none);
    return normal;
  }

  Tensor x, target, w1, w2, mean, variance, gain, shift, rate;
};

float largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<float> left = a.to_vector<float>();
  const std::vector<float> right = b.to_vector<float>();
  float largest = 0;
  for (size_t i = 0; i < left.size(); ++i) largest = std::max(largest, std::abs(left[i] - right[i]));
  return largest;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string trace_path = argc > 1 ? argv[1] : "demo.trace.json";
  Model plain([](const Tensor& tensor, const char*) { return tensor; });
  Tensor plain_out;
  for (int i = 0; i < kSteps; ++i) plain_out = plain.step();

  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  auto world = World::from_environment(4);  // threads, or the processes that mpirun has started
  const bool first = world->local_ranks().front() == 0;
  float difference = 0;
  if (first) {
    fmt::print("One training step on {}, as rank 0 sees it. Bytes are those that all ranks send together.\n\n",
               mesh->describe());
    print_header();
  }
  world->run([&](Rank& rank) {
    rank.trace_calls = true;
    Model model(
        [&](const Tensor& tensor, const char* layout) { return distribute(tensor, DistSpec::parse(mesh, layout)); });
    Tensor out;
    for (int i = 0; i < kSteps; ++i) {
      if (rank.id() == 0) rank.observer = i == 0 ? print_call : CallObserver();
      out = model.step();
    }
    // full_tensor() is collective: every rank calls it, rank 0 compares.
    float largest = largest_difference(full_tensor(out), plain_out);
    const std::pair<Tensor*, Tensor*> pairs[] = {
        {&model.w1, &plain.w1}, {&model.w2, &plain.w2}, {&model.mean, &plain.mean}, {&model.variance, &plain.variance}};
    for (const auto& [distributed, single] : pairs)
      largest = std::max(largest, largest_difference(full_tensor(*distributed), *single));
    if (rank.id() == 0) difference = largest;
  });

  save_trace(*world, trace_path);
  if (!first) return 0;
  const call::CacheStats stats = call::plan_cache_stats(world->rank(0));
  fmt::print("\nafter {} steps: largest difference to one rank {:.3g} (output, weights and running statistics)\n",
             kSteps, difference);
  fmt::print("plan cache of rank 0: {} hits, {} misses; bytes sent by rank 0: {}\n", stats.hits, stats.misses,
             world->rank(0).stats().bytes_sent);
  return difference < 1e-5f ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "demo_mlp: {}\n", error.what());
  return 1;
}
