// Captured programs compared with eager calls: small ops, a step of training a GPT, and how long analysis takes.
// usage: program_bench [--loop eager|captured N | --gpt CASE]; prints its own tables.
// --loop makes N calls of one kind, for counting instructions; --gpt trains a single case.
#include <cblas.h>
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "gpt.h"
#include "shard/autograd/autograd.h"
#include "shard/call/dry_report.h"
#include "shard/dist/world.h"
#include "shard/program/capture/function.h"
#include "shard/program/capture/split.h"
#include "shard/program/ir/alias.h"
#include "shard/shard.h"
#include "training.h"

namespace {

using namespace shard;
using Tensors = std::vector<Tensor>;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Call>
double nanoseconds(const Call& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

/// 100 ops on 4 floats, in a chain with side branches.
Tensors hundred(const Tensors& in) {
  Tensor x = in[0];
  for (int i = 0; i < 25; ++i) x = relu(add(multiply(x, in[1]), subtract(in[1], x)));
  return {x};
}
constexpr int kOps = 100;

Tensors small_inputs() {
  return {Tensor::from_data(std::vector<float>{1, 2, 3, 4}, {4}),
          Tensor::from_data(std::vector<float>{0.5, 0.25, 0.125, 1}, {4})};
}

void small_ops() {
  const Tensors in = small_inputs();
  CapturedFunction captured = capture(hundred, in);
  CapturedFunction unfused = capture(hundred, in, {.passes = false, .executor = {.fuse_block = 0}});
  CapturedFunction looped = capture(hundred, in, {.executor = {.fuse_block = 1}});
  std::vector<double> eager, replayed, plain, loops;
  for (int round = 0; round < 41; ++round) {
    constexpr int kCalls = 500;
    eager.push_back(nanoseconds([&] {
                      for (int i = 0; i < kCalls; ++i) hundred(in);
                    }) /
                    (kCalls * kOps));
    replayed.push_back(nanoseconds([&] {
                         for (int i = 0; i < kCalls; ++i) captured(in);
                       }) /
                       (kCalls * kOps));
    plain.push_back(nanoseconds([&] {
                      for (int i = 0; i < kCalls; ++i) unfused(in);
                    }) /
                    (kCalls * kOps));
    loops.push_back(nanoseconds([&] {
                      for (int i = 0; i < kCalls; ++i) looped(in);
                    }) /
                    (kCalls * kOps));
  }
  fmt::print(
      "100 ops on 4 floats, ns an op: eager {:.1f}, captured {:.1f}; without passes and loops {:.1f}, all in loops "
      "{:.1f}; eager / captured {:.2f}\n",
      median(eager), median(replayed), median(plain), median(loops), median(eager) / median(replayed));
}

/// A GPT and its optimiser.
struct Training {
  training::Gpt model;
  training::AdamW optimizer;
  training::GptSize size;
  const ProcessMesh* mesh;
  training::Draw draw{1};

  explicit Training(const training::GptSize& size, const ProcessMesh* mesh)
      : model(mesh, size, DType::float32), optimizer(model.parameters(), 1e-3), size(size), mesh(mesh) {
    for (const Tensor& parameter : model.parameters()) parameter.set_requires_grad(true);
  }
  Tensors batch() {
    std::vector<int64_t> ids, next;
    for (int64_t i = 0; i < size.batch * size.context; ++i) {
      ids.push_back(draw.below(size.alphabet));
      next.push_back((ids.back() * 7 + 3) % size.alphabet);
    }
    const auto on_mesh = [&](const std::vector<int64_t>& values) {
      return distribute(Tensor::from_data(values, {size.batch, size.context}), DistSpec::parse(mesh, "dp, -"));
    };
    return {on_mesh(ids), on_mesh(next)};
  }
  Tensors step(const Tensors& in) {
    const Tensor loss = model.loss(in[0], in[1]);
    loss.backward();
    optimizer.step();
    return {loss.detach()};
  }
};

const ProcessMesh* one_rank() { return ProcessMesh::make({1, 1}, {}, {"dp", "tp"}); }

/// The peak of live bytes of an eager training step, in addition to those before it, counted by a
/// rank without data.
int64_t eager_peak(const training::GptSize& size) {
  int64_t bytes = 0;
  World::dry(1, 0)->run([&](Rank& rank) {
    Training eager(size, one_rank());
    const int64_t before = dry_report(rank).live_bytes;
    eager.step(eager.batch());
    bytes = dry_report(rank).peak_bytes - before;
  });
  return bytes;
}

struct GptCase {
  training::GptSize size;
  int steps;
  int64_t block = 8192;  // elements of a block of fused loops; 0: no fusion
  double goal = 0;       // of live memory of the program, as a fraction of eager's peak; 0: no goal
  int threads = 1;
  double parallel_ns = 5000;
};

/// Trains by eager calls and by captured ones in alternation, on the same batches.
void gpt(const GptCase& each) {
  const auto& [size, steps, block, goal, threads, parallel_ns] = each;
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  openblas_set_num_threads(1);
  const int64_t peak = eager_peak(size);
  World::local(1)->run([&](Rank& rank) {
    rank.generator.set_seed(1);
    Training eager(size, one_rank());
    rank.generator.set_seed(1);
    Training replayed(size, one_rank());
    CaptureOptions options;
    options.memory_goal = static_cast<int64_t>(goal * static_cast<double>(peak));
    options.executor = {.fuse_block = block, .parallel_ns = parallel_ns};
    CapturedFunction captured([&](const Tensors& in) { return replayed.step(in); }, options);
    std::vector<double> eager_times, captured_times;
    double gap = 0;
    program::MemoryReport memory;
    for (int step = 0; step < steps + 3; ++step) {
      const Tensors in = eager.batch();
      Tensor a, b;
      const double eager_time = nanoseconds([&] { a = eager.step(in)[0]; }) * 1e-6;
      const double captured_time = nanoseconds([&] { b = captured(in)[0]; }) * 1e-6;
      gap = std::max(gap, static_cast<double>(
                              std::abs(full_tensor(a).to_vector<float>()[0] - full_tensor(b).to_vector<float>()[0])));
      if (step < 3) continue;
      eager_times.push_back(eager_time);
      captured_times.push_back(captured_time);
      memory = captured.memory(in);
    }
    const auto megabytes = [](int64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
    const int64_t taken = memory.block + memory.outputs + memory.reshard_peak;
    fmt::print(
        "GPT, {} layers of {}, batch {} x {}, {} thread{}, loops over {}{}{}: eager {:.2f} ms a step, captured {:.2f} "
        "ms; eager / captured {:.3f}; losses differ by {:.1g}; "
        "live bytes eager {:.2f} MB, captured {:.2f} MB of them {:.2f} MB fragmentation; captured / eager {:.3f}\n",
        size.layers, size.width, size.batch, size.context, threads, threads == 1 ? "" : "s", block,
        parallel_ns == 0 ? ", one op at a time" : "", goal == 0 ? "" : fmt::format(", memory goal {} of eager's", goal),
        median(eager_times), median(captured_times), median(eager_times) / median(captured_times), gap, megabytes(peak),
        megabytes(taken), megabytes(memory.block - memory.live),
        static_cast<double>(taken) / static_cast<double>(peak));
    std::fflush(stdout);
  });
}

/// Programs with views and in-place ops, whose backward reads residuals.
void analysis(int ops) {
  const Tensor w = Tensor::from_data(std::vector<float>{1, 2, 3, 4}, {4}).set_requires_grad(true);
  const auto function = [&](const Tensors& in) -> Tensors {
    Tensor x = in[0];
    for (int i = 0; i < ops / 8; ++i) {
      Tensor y = reshape(multiply(x, w), {2, 2});
      relu_(y);
      x = reshape(y, {4});
    }
    return {x};
  };
  program::Trace trace;
  const double traced = nanoseconds([&] { trace = program::trace(function, small_inputs()); }) * 1e-6;
  std::vector<double> chains, split;
  for (int round = 0; round < 5; ++round) {
    chains.push_back(nanoseconds([&] { program::inplace_chains(trace.program); }) * 1e-6);
    split.push_back(nanoseconds([&] { program::split(trace); }) * 1e-6);
  }
  const double verified = nanoseconds([&] { trace.program.verify(); }) * 1e-6;
  fmt::print("{} ops: capture {:.1f} ms, in-place chains {:.2f} ms, split {:.2f} ms, verify {:.1f} ms\n",
             trace.program.ops.size(), traced, median(chains), median(split), verified);
}

int loop(const char* kind, int calls) {
  const Tensors in = small_inputs();
  CapturedFunction captured = capture(hundred, in);
  for (int i = 0; i < calls; ++i) std::strcmp(kind, "eager") == 0 ? hundred(in) : captured(in);
  return 0;
}

constexpr training::GptSize kSmall{.alphabet = 80, .layers = 2, .heads = 4, .width = 64, .batch = 16, .context = 64};
constexpr training::GptSize kLarge{.alphabet = 80, .layers = 4, .heads = 8, .width = 256, .batch = 8, .context = 128};
constexpr GptCase kCases[] = {
    {.size = kSmall, .steps = 60},
    {.size = kSmall, .steps = 60, .block = 0},
    {.size = kSmall, .steps = 20, .goal = 0.6},
    {.size = kSmall, .steps = 60, .goal = 0.94},
    {.size = kSmall, .steps = 60, .threads = 2, .parallel_ns = 0},
    {.size = kSmall, .steps = 60, .threads = 2},
    {.size = kLarge, .steps = 12},
    {.size = kLarge, .steps = 12, .block = 0},
    {.size = kLarge, .steps = 6, .goal = 0.6},
    {.size = kLarge, .steps = 12, .goal = 0.94},
    {.size = kLarge, .steps = 12, .threads = 2, .parallel_ns = 0},
    {.size = kLarge, .steps = 12, .threads = 2},
};

/// Runs each case in a process of its own, because the state that another case leaves in the
/// allocator changes the cost of fresh memory.
void train_all() {
  std::fflush(stdout);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (size_t i = 0; i < std::size(kCases); ++i) {
    if (std::system(fmt::format("'{}' --gpt {}", self, i).c_str()) != 0) fmt::print("case {} of the GPTs failed\n", i);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--loop") == 0) return loop(argv[2], std::atoi(argv[3]));
  if (argc == 3 && std::strcmp(argv[1], "--gpt") == 0) {
    gpt(kCases[static_cast<size_t>(std::atoi(argv[2])) % std::size(kCases)]);
    return 0;
  }
  small_ops();
  analysis(1000);
  analysis(10000);
  train_all();
  return 0;
}
