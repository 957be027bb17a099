// Compares a step of training a GPT (examples/gpt.h) on one rank with the same model in libtorch: time and peak memory.
// usage: gpt_bench [--steps N]; prints its own tables.
// gpt_bench --memory shard|peer CASE trains one side alone and prints its peak.
#include <cblas.h>
#include <fmt/format.h>
#include <tbb/global_control.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "gpt.h"
#include "gpt_peer.h"
#include "shard/dist/world.h"
#include "shard/shard.h"
#include "training.h"

namespace {

using namespace shard;
using Clock = std::chrono::steady_clock;

constexpr double kRate = 1e-3;
constexpr training::GptSize kCases[] = {
    {.alphabet = 80, .layers = 2, .heads = 4, .width = 64, .batch = 16, .context = 64},
    {.alphabet = 80, .layers = 4, .heads = 8, .width = 256, .batch = 8, .context = 128},
};

struct Batch {
  std::vector<int64_t> ids, next;
};

Batch draw_batch(training::Draw& draw, const training::GptSize& size) {
  Batch batch;
  for (int64_t i = 0; i < size.batch * size.context; ++i) {
    batch.ids.push_back(draw.below(size.alphabet));
    batch.next.push_back((batch.ids.back() * 7 + 3) % size.alphabet);  // something that can be learned
  }
  return batch;
}

/// The model of this library, on this rank.
class Ours {
 public:
  explicit Ours(const training::GptSize& size)
      : size_(size), mesh_(ProcessMesh::make({1, 1}, {}, {"dp", "tp"})), gpt_(mesh_, size, DType::float32),
        optimizer_(gpt_.parameters(), kRate) {
    for (const Tensor& parameter : gpt_.parameters()) parameter.set_requires_grad(true);
  }

  double step(const Batch& batch) {
    const auto on_mesh = [&](const std::vector<int64_t>& values) {
      return distribute(Tensor::from_data(values, {size_.batch, size_.context}), DistSpec::parse(mesh_, "dp, -"));
    };
    const Tensor loss = gpt_.loss(on_mesh(batch.ids), on_mesh(batch.next));
    loss.backward();
    optimizer_.step();
    return static_cast<double>(full_tensor(loss.detach()).to_vector<float>().front());
  }

  const std::vector<Tensor>& parameters() const { return gpt_.parameters(); }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> values;
    for (const Tensor& parameter : gpt_.parameters())
      values.push_back(full_tensor(parameter.detach()).to_vector<float>());
    return values;
  }

 private:
  training::GptSize size_;
  const ProcessMesh* mesh_;
  training::Gpt gpt_;
  training::AdamW optimizer_;
};

GptPeerSize peer_size(const training::GptSize& size) {
  return {size.alphabet, size.layers, size.heads, size.width, size.batch, size.context};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The time of one call in milliseconds.
template <class Call>
double time_of(const Call& call) {
  const auto begin = Clock::now();
  call();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// Steps alternate, so that a busy machine slows both alike. Both get the same batches; their
/// losses must agree, or they are not the same model.
void compare(const training::GptSize& size, int threads, int steps) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Ours ours(size);
  const std::unique_ptr<GptPeer> peer = make_gpt_peer(peer_size(size), ours.values(), kRate);
  set_gpt_peer_threads(threads);
  training::Draw draw(1);
  std::vector<double> our_times, peer_times;
  double gap = 0;
  for (int step = 0; step < steps + 3; ++step) {
    const Batch batch = draw_batch(draw, size);
    double our_loss = 0, peer_loss = 0;
    openblas_set_num_threads(1);  // this library divides the work itself
    const double our_time = time_of([&] { our_loss = ours.step(batch); });
    if (step >= 3) our_times.push_back(our_time);  // the first steps create plans and threads
    if (!peer) continue;
    openblas_set_num_threads(threads);
    const double peer_time = time_of([&] { peer_loss = peer->step(batch.ids, batch.next); });
    if (step >= 3) peer_times.push_back(peer_time);
    if (step < 10) gap = std::max(gap, std::abs(our_loss - peer_loss) / peer_loss);
  }
  openblas_set_num_threads(1);
  const double tokens = static_cast<double>(size.batch * size.context), our_median = median(our_times),
               peer_median = median(peer_times);
  fmt::print("{} layers of {}, {} heads, batch {} x {}, {} thread{}: {:.2f} ms a step, {:.0f} tokens/s", size.layers,
             size.width, size.heads, size.batch, size.context, threads, threads == 1 ? "" : "s", our_median,
             1000 * tokens / our_median);
  if (peer)
    fmt::print("; libtorch {:.2f} ms; libtorch / shard {:.2f}; losses of 10 steps within {:.1g}", peer_median,
               peer_median / our_median, gap);
  fmt::print("\n");
  std::fflush(stdout);
}

/// A figure of /proc/self/status in KiB, 0 if it does not exist.
long status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word == name + ":") {
      long value = 0;
      file >> value;
      return value;
    }
  }
  return 0;
}

/// Creates a model of one side and trains it for 5 steps.
void train(bool by_ours, const training::GptSize& size) {
  std::unique_ptr<Ours> ours;
  std::unique_ptr<GptPeer> peer;
  if (by_ours) {
    ours = std::make_unique<Ours>(size);
  } else {
    std::vector<std::vector<float>> values;  // a dry world determines their sizes without data
    World::dry(1, 0)->run([&](Rank&) {
      const Ours ours(size);
      for (const Tensor& parameter : ours.parameters()) values.emplace_back(parameter.numel(), 0.01f);
    });
    peer = make_gpt_peer(peer_size(size), values, kRate);
  }
  training::Draw draw(1);
  for (int step = 0; step < 5; ++step) {
    const Batch batch = draw_batch(draw, size);
    if (ours) ours->step(batch);
    if (peer) peer->step(batch.ids, batch.next);
  }
}

/// Prints by how many KiB the peak memory of a process rises when it creates and trains a model. A
/// tiny model is trained before, so that the program's own pages and threads exist.
void print_memory(bool by_ours, const training::GptSize& size) {
  train(by_ours, {.alphabet = 8, .layers = 1, .heads = 1, .width = 8, .batch = 1, .context = 8});
  const long before = status("VmRSS");
  train(by_ours, size);
  fmt::print("{}\n", status("VmHWM") - before);
}

/// The same in a process of its own; 0 where it cannot be measured.
long memory_of(const char* side, size_t number) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0) return 0;
  FILE* const child = popen(
      fmt::format("'{}' --memory {} {}", std::string_view(self, static_cast<size_t>(length)), side, number).c_str(),
      "r");
  if (child == nullptr) return 0;
  long kib = 0;
  if (std::fscanf(child, "%ld", &kib) != 1) kib = 0;
  pclose(child);
  return kib;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto run = [](const auto& program) { World::local(1)->run([&](Rank&) { program(); }); };
  if (arguments.size() == 3 && arguments[0] == "--memory") {
    const bool ours = arguments[1] == "shard";
    const training::GptSize& size = kCases[std::stoul(arguments[2]) % std::size(kCases)];
    if (ours) run([&] { print_memory(ours, size); });
    else print_memory(ours, size);
    return 0;
  }
  const int steps = arguments.size() == 2 && arguments[0] == "--steps" ? std::stoi(arguments[1]) : 60;
  fmt::print("A step of training a GPT on one rank, float32: median of {} steps, in turn with libtorch\n", steps);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const training::GptSize& size : kCases) {
    for (const int threads : cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1})
      run([&] { compare(size, threads, steps); });
  }
  fmt::print("\nPeak memory of making a model and training it for 5 steps, each library in a process of its own\n");
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const long ours = memory_of("shard", i), peer = memory_of("peer", i);
    fmt::print("{} layers of {}, batch {} x {}: {:.1f} MB; libtorch {:.1f} MB\n", kCases[i].layers, kCases[i].width,
               kCases[i].batch, kCases[i].context, static_cast<double>(ours) / 1024, static_cast<double>(peer) / 1024);
  }
  return 0;
}
