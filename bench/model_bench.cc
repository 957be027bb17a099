// Trains models for bench/model_bench.py, which times their steps beside PyTorch's.
// usage: model_bench [--threads N]
// The environment variable SHARD_DEVICE names the device.
// Each line of the standard input is a command, and is answered by one line:
//   list                    the names of all models, separated by semicolons
//   make MODE FILE MODEL    builds a model, whose steps are `eager` or `captured`, and writes its parameters and batches; answers ok
//   step N                  makes N steps; answers the seconds of one and the loss of the last
//   ops N                   makes N steps; answers for each op its calls and its milliseconds in a step, without those of the
//                           ops that it calls, longest first, separated by semicolons
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>

#include <shard/program.h>
#include <shard/shard.h>

#include "models.h"

namespace {

using namespace shard;
using Tensors = std::vector<Tensor>;
using Clock = std::chrono::steady_clock;

constexpr size_t kBatches = 8;  // that steps take in turn

/// A model in training.
class Training {
 public:
  Training(model_bench::Model model, bool captured) : model_(std::move(model)), optimizer_(parameters(), 1e-3) {
    for (const Tensor& parameter : parameters()) parameter.set_requires_grad(true);
    for (size_t i = 0; i < kBatches; ++i) batches_.push_back(model_.run.batch());
    if (captured) program_.emplace([this](const Tensors& in) { return Tensors{loss_of_step(in)}; }, CaptureOptions());
  }

  double step() {
    const Tensors& batch = batches_[steps_++ % kBatches];
    const Tensor loss = program_ ? (*program_)(batch)[0] : loss_of_step(batch);
    return static_cast<double>(cast(full_tensor(loss), DType::float32).to_vector<float>().front());
  }

  /// Parameters and then batches, as their elements one after the other.
  void write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    const auto write = [&]<class T>(const std::vector<T>& elements) {
      file.write(reinterpret_cast<const char*>(elements.data()),
                 static_cast<std::streamsize>(elements.size() * sizeof(T)));
    };
    const auto append = [&](const Tensor& x) {
      const Tensor whole = full_tensor(x.detach());
      if (whole.dtype() == DType::int64) write(whole.to_vector<int64_t>());
      else write(cast(whole, DType::float32).to_vector<float>());
    };
    for (const Tensor& parameter : parameters()) append(parameter);
    for (const Tensors& batch : batches_) {
      for (const Tensor& x : batch) append(x);
    }
    if (!file) throw std::runtime_error(fmt::format("{} could not be written", path));
  }

 private:
  const Tensors& parameters() const { return model_.run.parameters; }
  Tensor loss_of_step(const Tensors& batch) {
    // Those of the step before; the gradients of this one are results of the program, which has to compute them.
    if (!model_.updates) {
      for (const Tensor& parameter : parameters()) parameter.set_grad({});
    }
    const Tensor loss = model_.run.loss(batch);
    loss.backward();
    if (model_.updates) optimizer_.step();
    return loss.detach();
  }

  model_bench::Model model_;
  training::AdamW optimizer_;
  std::vector<Tensors> batches_;
  std::optional<CapturedFunction> program_;
  size_t steps_ = 0;
};

/// Calls and nanoseconds of each op, without those of the ops that it calls.
using OpTimes = std::map<std::string_view, std::pair<int64_t, int64_t>>;

/// Adds those of a step. An event is recorded when it ends, and so after those that it contains.
void add_times(const std::vector<TraceEvent>& events, OpTimes& times) {
  std::vector<const TraceEvent*> ended;  // that no later event has contained so far
  for (const TraceEvent& event : events) {
    auto& [calls, time] = times[event.name];
    ++calls;
    time += event.end_ns - event.begin_ns;
    while (!ended.empty() && ended.back()->begin_ns >= event.begin_ns) {
      time -= ended.back()->end_ns - ended.back()->begin_ns;
      ended.pop_back();
    }
    ended.push_back(&event);
  }
}

std::string text_of(const OpTimes& times, int steps) {
  std::vector<std::pair<int64_t, std::string>> rows;
  for (const auto& [op, sums] : times)
    rows.emplace_back(-sums.second,
                      fmt::format("{} {} {:.3f}", op, sums.first / steps, 1e-6 * double(sums.second) / steps));
  std::sort(rows.begin(), rows.end());
  std::string text;
  for (const auto& [time, row] : rows) text += (text.empty() ? "" : ";") + row;
  return text;
}

class Server {
 public:
  explicit Server(Rank& rank) : rank_(rank) {}
  std::string answer(const std::string& command, std::istringstream& rest) {
    if (command == "list") {
      std::string names;
      for (const auto& [name, make] : models_) names += (names.empty() ? "" : ";") + name;
      return names;
    }
    if (command == "make") {
      std::string mode, path, name;
      std::getline(rest >> mode >> path >> std::ws, name);
      now_.reset();
      now_.emplace(models_.at(name)(ProcessMesh::make({1, 1}, {}, {"dp", "tp"})), mode == "captured");
      now_->write(path);
      return "ok";
    }
    int steps = 0;
    rest >> steps;
    if (command == "ops") return ops(steps);
    double loss = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) loss = now_.value().step();
    return fmt::format("{:.9f} {:.9g}", std::chrono::duration<double>(Clock::now() - begin).count() / steps, loss);
  }

 private:
  std::string ops(int steps) {
    OpTimes times;
    rank_.trace_calls = true;
    for (int i = 0; i < steps; ++i) {
      rank_.trace.clear();
      now_.value().step();
      add_times(rank_.trace.events(), times);
    }
    rank_.trace_calls = false;
    return text_of(times, steps);
  }

  Rank& rank_;
  std::map<std::string, std::function<model_bench::Model(const ProcessMesh*)>> models_ = model_bench::models();
  std::optional<Training> now_;
};

}  // namespace

int main(int count, char** arguments) {
  const size_t threads = count == 3 ? std::stoul(arguments[2]) : 1;
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  World::local(1)->run([](Rank& rank) {
    Server server(rank);
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream rest(line);
      std::string command;
      rest >> command;
      std::cout << server.answer(command, rest) << std::endl;
    }
  });
}
