// Runs single kernels for bench/kernel_bench.py, which times them beside PyTorch's.
// usage: kernel_bench [--threads N]
// Each line of the standard input is a command, and is answered by one line:
//   list                  the names of all cases, separated by blanks
//   triad                 answers the bytes a second of a[i] = b[i] + 3 c[i] over long arrays: what memory allows
//   make CASE             draws the inputs of a case; answers ok and the bytes of its inputs and result
//   forward N K           runs the case N times K times; answers the seconds a run of each K
//   backward N K          the same, forward and backward with gradients of all of its float inputs
#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include <chrono>
#include <iostream>
#include <sstream>

#include "kernel_cases.h"

namespace {

using namespace kernel_bench;
using Clock = std::chrono::steady_clock;

Cases all_cases() {
  Cases all;
  add_basic_cases(all);
  add_layer_cases(all);
  return all;
}

/// The mean seconds of a run.
template <class Run>
double seconds(int runs, const Run& run) {
  const auto begin = Clock::now();
  for (int i = 0; i < runs; ++i) run();
  return std::chrono::duration<double>(Clock::now() - begin).count() / runs;
}

/// The bytes a second of a[i] = b[i] + 3 c[i] over arrays of 128 MB each, the best of several runs.
double triad() {
  const size_t count = size_t{1} << 25;
  std::vector<float> a(count), b(count, 1.0f), c(count, 2.0f);
  double best = 0;
  for (int run = 0; run < 9; ++run) {
    const double time = seconds(1, [&] {
      tbb::parallel_for(tbb::blocked_range<size_t>(0, count, size_t{1} << 16), [&](const auto& range) {
        float* const to = a.data();
        const float *const first = b.data(), *const second = c.data();
        for (size_t i = range.begin(); i < range.end(); ++i) to[i] = first[i] + 3.0f * second[i];
      });
    });
    best = std::max(best, 3 * static_cast<double>(count * sizeof(float)) / time);
  }
  return best;
}

class Server {
 public:
  std::string answer(const std::string& command, std::istringstream& rest) {
    if (command == "list") {
      std::string names;
      for (const auto& [name, each] : all_)
        names += (names.empty() ? "" : ";") + name + (each.differentiable ? "+" : "-");
      return names;
    }
    if (command == "make") {
      std::string name;
      std::getline(rest >> std::ws, name);
      now_ = &all_.at(name);
      inputs_ = now_->make();
      const NoGrad no_grad;
      int64_t bytes = bytes_of(now_->run(inputs_));
      for (const Tensor& input : inputs_) bytes += bytes_of(input);
      return fmt::format("ok {}", bytes);
    }
    if (command == "triad") return fmt::format("{:.6g}", triad());
    int samples = 0, runs = 0;
    rest >> samples >> runs;
    std::string times;
    for (int i = 0; i < samples; ++i)
      times += fmt::format("{:.9f} ", command == "forward" ? forward(runs) : backward(runs));
    return times;
  }

 private:
  static int64_t bytes_of(const Tensor& x) { return x.numel() * static_cast<int64_t>(size_of(x.dtype())); }

  double forward(int runs) {
    const NoGrad no_grad;
    return seconds(runs, [&] { now_->run(inputs_); });
  }
  /// Forward and backward with gradients of all float inputs.
  double backward(int runs) {
    for (Tensor& input : inputs_) {
      if (!is_floating(input.dtype())) continue;
      input = input.detach();
      input.set_requires_grad(true);
    }
    if (!gradient_of_.defined() || gradient_for_ != now_) {
      const Tensor result = now_->run(inputs_);
      gradient_of_ = cast(uniform(IntArray(result.dims()), DType::float32, -1, 1), result.dtype());
      gradient_for_ = now_;
    }
    return seconds(runs, [&] { now_->run(inputs_).backward(gradient_of_); });
  }

  Cases all_ = all_cases();
  const Case* now_ = nullptr;
  Inputs inputs_;
  Tensor gradient_of_;
  const Case* gradient_for_ = nullptr;
};

}  // namespace

int main(int count, char** arguments) {
  const size_t threads = count == 3 ? std::stoul(arguments[2]) : 1;
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  Server server;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream rest(line);
    std::string command;
    rest >> command;
    std::cout << server.answer(command, rest) << std::endl;
  }
}
