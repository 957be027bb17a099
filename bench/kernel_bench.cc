// Runs single kernels for bench/kernel_bench.py, which times them beside PyTorch's.
// usage: kernel_bench [--threads N] [--device NAME] [--table [TEXT]]
// --table times all cases, or those whose names contain TEXT, prints a table of them and ends: beside no peer, for devices.
// Each line of the standard input is a command, and is answered by one line, which begins with "failed: " where it failed:
//   list                  the names of all cases, separated by blanks
//   triad                 answers the bytes a second of a[i] = b[i] + 3 c[i] over long arrays: what memory allows. On a device, of a copy
//   make CASE             draws the inputs of a case; answers ok and the bytes of its inputs and result
//   forward N K           runs the case N times K times; answers the seconds a run of each K
//   backward N K          the same, forward and backward with gradients of all of its float inputs
#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <iostream>
#include <optional>
#include <sstream>

#include "kernel_cases.h"
#include "shard/core/storage.h"

namespace {

using namespace kernel_bench;
using Clock = std::chrono::steady_clock;

/// The device of all cases.
Device& device() {
  static Device used = kCpu;
  return used;
}
void wait_for_device() { backend_of(device()).synchronize(device().index); }

Cases all_cases() {
  Cases all;
  add_basic_cases(all);
  add_layer_cases(all);
  if (device() != kCpu) add_device_cases(all);
  return all;
}

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Times {
  double whole = 0, host = 0;  // seconds a run: until its work is done, and until it is issued
};

/// Means of runs.
template <class Run>
Times times_of(int runs, const Run& run) {
  wait_for_device();
  const auto begin = Clock::now();
  for (int i = 0; i < runs; ++i) run();
  const double host = since(begin) / runs;
  wait_for_device();
  return {since(begin) / runs, host};
}
template <class Run>
double seconds(int runs, const Run& run) {
  return times_of(runs, run).whole;
}

/// The bytes a second of copies of 512 MB within the device, read and written, the best of several runs.
double copy_bandwidth() {
  const size_t bytes = size_t{512} << 20;
  const Ref<Storage> from = Storage::allocate(device(), bytes), to = Storage::allocate(device(), bytes);
  double best = 0;
  for (int run = 0; run < 9; ++run)
    best = std::max(best, 2 * static_cast<double>(bytes) /
                              seconds(4, [&] { copy_bytes(device(), to->data(), device(), from->data(), bytes); }));
  return best;
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

std::string in_one_line(const std::exception& error) {
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
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
      return fmt::format("ok {}", make(name));
    }
    if (command == "triad") return fmt::format("{:.6g}", bandwidth());
    int samples = 0, runs = 0;
    rest >> samples >> runs;
    std::string times;
    for (int i = 0; i < samples; ++i)
      times += fmt::format("{:.9f} ", (command == "forward" ? forward(runs) : backward(runs)).whole);
    return times;
  }

  /// Times all cases whose names contain `match`, and prints a table of medians of 7. Returns false where a case fails.
  bool print_table(const std::string& match) {
    const double most = bandwidth();
    bool all_ran = true;
    fmt::print("{}: memory {:.1f} GB/s, read and written\n\n", to_string(device()), most * 1e-9);
    fmt::print("| case | ms | memory | host, us | backward, ms |\n|---|---|---|---|---|\n");
    for (const auto& [name, each] : all_) {
      if (name.find(match) == std::string::npos) continue;
      try {
        const int64_t bytes = make(name);
        const Times times = median([&](int runs) { return forward(runs); });
        const std::string gradient =
            each.differentiable ? fmt::format("{:.4g}", median([&](int runs) { return backward(runs); }).whole * 1e3)
                                : "";
        fmt::print("| {} | {:.4g} | {:.2f} | {:.3g} | {} |\n", name, times.whole * 1e3,
                   static_cast<double>(bytes) / most / times.whole, times.host * 1e6, gradient);
      } catch (const std::exception& error) {
        fmt::print("| {} | failed: {} | | | |\n", name, in_one_line(error));
        all_ran = false;
      }
      std::fflush(stdout);
    }
    return all_ran;
  }

 private:
  static double bandwidth() { return device() == kCpu ? triad() : copy_bandwidth(); }

  /// Medians of 7 samples of at least 10 ms.
  template <class Sample>
  static Times median(const Sample& sample) {
    sample(1);
    const int runs = std::clamp(static_cast<int>(std::ceil(10e-3 / sample(1).whole)), 1, 200);
    std::vector<double> whole, host;
    for (int i = 0; i < 7; ++i) {
      const Times times = sample(runs);
      whole.push_back(times.whole);
      host.push_back(times.host);
    }
    std::nth_element(whole.begin(), whole.begin() + 3, whole.end());
    std::nth_element(host.begin(), host.begin() + 3, host.end());
    return {whole[3], host[3]};
  }

  /// Draws the inputs of a case and returns the bytes of these and of the result.
  int64_t make(const std::string& name) {
    now_ = &all_.at(name);
    inputs_ = {};
    gradient_of_ = {};
    inputs_ = now_->make();
    const NoGrad no_grad;
    int64_t bytes = bytes_of(now_->run(inputs_));
    for (const Tensor& input : inputs_) bytes += bytes_of(input);
    return bytes;
  }

  static int64_t bytes_of(const Tensor& x) { return x.numel() * static_cast<int64_t>(size_of(x.dtype())); }

  Times forward(int runs) {
    const NoGrad no_grad;
    return times_of(runs, [&] { now_->run(inputs_); });
  }
  /// Forward and backward with gradients of all float inputs.
  Times backward(int runs) {
    for (Tensor& input : inputs_) {
      if (!is_floating(input.dtype())) continue;
      input = input.detach();
      input.set_requires_grad(true);
    }
    if (!gradient_of_.defined()) {
      const Tensor result = now_->run(inputs_);
      gradient_of_ = cast(uniform(IntArray(result.dims()), DType::float32, -1, 1), result.dtype());
    }
    return times_of(runs, [&] { now_->run(inputs_).backward(gradient_of_); });
  }

  Cases all_ = all_cases();
  const Case* now_ = nullptr;
  Inputs inputs_;
  Tensor gradient_of_;
};

}  // namespace

int main(int count, char** arguments) {
  size_t threads = 1;
  std::optional<std::string> table;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    const std::string value = i + 1 < count ? arguments[i + 1] : "";
    if (option == "--table") {
      table = value;
    } else if (option == "--threads" && !value.empty()) {
      threads = std::stoul(value);
    } else if (option == "--device" && !value.empty()) {
      device() = parse_device(value);
    } else {
      std::cerr << "usage: kernel_bench [--threads N] [--device NAME] [--table [TEXT]]\n";
      return 2;
    }
    ++i;
  }
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  const DefaultDevice use(device());
  Server server;
  if (table) return server.print_table(*table) ? 0 : 1;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream rest(line);
    std::string command;
    rest >> command;
    try {
      std::cout << server.answer(command, rest) << std::endl;
    } catch (const std::exception& error) { std::cout << "failed: " << in_one_line(error) << std::endl; }
  }
}
