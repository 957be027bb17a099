#include "training.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

#include <shard/program.h>
#include <shard/shard.h>

using namespace shard;

namespace training {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBeta1 = 0.9, kBeta2 = 0.99;  // of AdamW
constexpr int kChunk = 65536;                  // an argument of fused_adam_ without effect

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Progress: one line on a terminal that is redrawn, or ten lines in a file.
class Progress {
 public:
  Progress(const Options& options, int64_t tokens) : steps_(options.steps), tokens_(tokens), quiet_(options.quiet) {}

  /// After `step` steps; the last of them sent `bytes` from this rank.
  void show(int step, double loss, int64_t bytes) const {
    if (quiet_) return;
    const bool last = step == steps_;
    if (!terminal_ && !last && step % std::max(1, steps_ / 10) != 0) return;
    constexpr int kWidth = 30;
    const int done = kWidth * step / steps_;
    const std::string bar = terminal_ ? fmt::format("\r[{:=<{}}{: <{}}] ", "", done, "", kWidth - done) : "";
    fmt::print(stderr, "{}step {}/{}  loss {:.4f}  {:.0f} tokens/s  {:.1f} KiB sent a step{}", bar, step, steps_, loss,
               static_cast<double>(tokens_ * step) / seconds_since(begin_), static_cast<double>(bytes) / 1024,
               terminal_ && !last ? "  " : "\n");
    std::fflush(stderr);
  }

 private:
  int steps_;
  int64_t tokens_;
  bool quiet_;
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  Clock::time_point begin_ = Clock::now();
};

std::vector<double> read_losses(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorCode::invalid_argument, "--compare {}: cannot be read", path);
  std::vector<double> losses;
  for (double loss = 0; file >> loss;) losses.push_back(loss);
  return losses;
}

/// The largest relative difference; infinite where a loss is NaN.
double largest_gap(const std::vector<double>& losses, const std::vector<double>& others) {
  if (losses.size() != others.size()) {
    fail(ErrorCode::invalid_argument, "--compare: the other run has {} losses, this one {}", others.size(),
         losses.size());
  }
  double largest = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double gap = std::abs(losses[i] - others[i]) / std::abs(others[i]);
    largest = std::isnan(gap) ? INFINITY : std::max(largest, gap);
  }
  return largest;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  const std::map<std::string, DType> dtypes = {{"float32", DType::float32}, {"float64", DType::float64}};
  app.add_option("--dp", options.dp, "ranks that share the batch")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--tp", options.tp, "ranks that share each weight")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", options.steps, "steps of training")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rate", options.rate, "learning rate of AdamW")->capture_default_str();
  app.add_option("--dtype", options.dtype, "of parameters and computation (default float32)")
      ->transform(CLI::CheckedTransformer(dtypes));
  app.add_option("--seed", options.seed, "of initial values and batches")->capture_default_str();
  app.add_flag("--captured", options.captured, "capture a step (loss, backward, AdamW) once, and run it as a program");
  app.add_flag("--quiet", options.quiet, "no progress on stderr");
  app.add_option("--losses", options.losses, "write the loss of each step to this file, with 17 digits");
  app.add_option("--compare", options.compare, "print the largest relative difference to the losses in this file");
  app.add_option("--tolerance", options.tolerance, "fail where that difference is larger");
}

AdamW::AdamW(const std::vector<Tensor>& parameters, double rate) : parameters_(parameters) {
  const Tensor& first = parameters.at(0);
  const DistSpec* whole = DistSpec::replicated(spec_of(first)->mesh(), 1);
  const auto number = [&](double value) { return full({1}, value, whole, first.dtype()); };
  rate_ = number(rate);
  for (const Tensor& parameter : parameters) {
    moments1_.push_back(full_like(parameter, 0.0));
    moments2_.push_back(full_like(parameter, 0.0));
    beta1_pows_.push_back(number(kBeta1));
    beta2_pows_.push_back(number(kBeta2));
  }
}

void AdamW::step() {
  const NoGrad none_recorded;
  std::vector<Tensor> gradients, no_masters;
  for (const Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  fused_adam_(parameters_, gradients, rate_, moments1_, moments2_, beta1_pows_, beta2_pows_, no_masters, Tensor(),
              kBeta1, kBeta2, 1e-8, kChunk, 0.01f, true, false, false);
  for (const Tensor& parameter : parameters_) parameter.set_grad({});
}

int64_t Draw::below(int64_t bound) {  // splitmix64
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<int64_t>((z ^ (z >> 31)) % static_cast<uint64_t>(bound));
}

int train(const std::string& name, const Options& options, int64_t tokens,
          const std::function<Run(const ProcessMesh*)>& start) {
  const auto* mesh = ProcessMesh::make({options.dp, options.tp}, {}, {"dp", "tp"});
  const auto world = World::from_environment(mesh->size(), {.seed = options.seed});
  if (world->size() != mesh->size()) {
    fail(ErrorCode::invalid_argument, "{} processes were started for {}; start {}, or choose other --dp and --tp",
         world->size(), mesh->describe(), mesh->size());
  }
  int result = 0;
  world->run([&](Rank& rank) {
    const Run run = start(mesh);
    for (const Tensor& parameter : run.parameters) parameter.set_requires_grad(true);
    AdamW optimizer(run.parameters, options.rate);
    const Progress progress(options, tokens);
    const auto begin = Clock::now();
    const int64_t sent_before = rank.stats().bytes_sent;
    const auto train_on = [&](const std::vector<Tensor>& batch) -> std::vector<Tensor> {
      const Tensor loss = run.loss(batch);
      loss.backward();
      optimizer.step();
      return {loss.detach()};
    };
    CapturedFunction captured(train_on, {});
    std::vector<double> losses;
    for (int step = 1; step <= options.steps; ++step) {
      const int64_t sent = rank.stats().bytes_sent;
      const std::vector<Tensor> batch = run.batch();
      const Tensor loss = options.captured ? captured(batch)[0] : train_on(batch)[0];
      losses.push_back(
          full_tensor(cast(loss, DType::float64)).to_vector<double>().front());  // collective: every rank calls it
      if (rank.id() == 0) progress.show(step, losses.back(), rank.stats().bytes_sent - sent);
    }
    if (rank.id() != 0) return;

    int64_t numbers = 0;
    for (const Tensor& parameter : run.parameters) numbers += parameter.numel();
    fmt::print(
        "{}: {} steps on {} in {}, {} parameters: loss {:.4f} to {:.4f}\n"
        "{:.0f} tokens/s, {:.1f} KiB sent a step by rank 0\n",
        name, options.steps, mesh->describe(), to_string(options.dtype), numbers, losses.front(), losses.back(),
        static_cast<double>(tokens * options.steps) / seconds_since(begin),
        static_cast<double>(rank.stats().bytes_sent - sent_before) / options.steps / 1024);
    if (!options.losses.empty()) {
      std::ofstream file(options.losses);
      for (const double loss : losses) file << fmt::format("{:.17g}\n", loss);
      if (!file.flush()) fail(ErrorCode::invalid_argument, "--losses {}: cannot be written", options.losses);
    }
    if (options.compare.empty()) return;
    const double gap = largest_gap(losses, read_losses(options.compare));
    fmt::print("largest relative difference to {}: {:.3g}\n", options.compare, gap);
    if (options.tolerance >= 0 && gap > options.tolerance) result = 1;
  });
  return result;
}

}  // namespace training
