// Shared code of the training examples: command line, AdamW, the loop over steps with its progress
// line, and files of losses.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include <shard/shard.h>

namespace training {

struct Options {
  int dp = 1, tp = 1;  // ranks that share the batch, and ranks that share each weight
  int steps = 200;
  double rate = 1e-3;
  shard::DType dtype = shard::DType::float32;
  uint64_t seed = 1;
  bool quiet = false;
  bool captured = false;  // a step is captured once, and then run as a program
  std::string losses;     // the file to write them to
  std::string compare;    // a file of losses of another run
  double tolerance = -1;  // the largest allowed relative difference; negative: any
};

/// Adds the options to the command line of a program.
void add_options(CLI::App& app, Options& options);

/// A model on a mesh, on this rank.
struct Run {
  std::vector<shard::Tensor> parameters;
  std::function<std::vector<shard::Tensor>()> batch;                           // the next one
  std::function<shard::Tensor(const std::vector<shard::Tensor>& batch)> loss;  // one element
};

/// AdamW over distributed parameters of one dtype in any layouts: the moments have the layout of their
/// parameter, so that a step sends nothing, and one call updates all parameters.
class AdamW {
 public:
  /// Betas 0.9 and 0.99, epsilon 1e-8, weight decay 0.01.
  AdamW(const std::vector<shard::Tensor>& parameters, double rate);

  /// Applies the gradients, and clears them.
  void step();

 private:
  shard::Tensor rate_;
  std::vector<shard::Tensor> parameters_, moments1_, moments2_, beta1_pows_, beta2_pows_;
};

/// Trains a model on dp x tp ranks: threads, or the processes of mpirun. `start` builds it on a
/// mesh with the axes "dp" and "tp". Rank 0 prints a summary to stdout and, during training, losses
/// and speed to stderr. A step processes `tokens` tokens, summed over the ranks. Returns the exit
/// code: 1 where the losses differ too much from those of `compare`.
int train(const std::string& name, const Options& options, int64_t tokens,
          const std::function<Run(const shard::ProcessMesh*)>& start);

/// Random numbers that are the same on every rank and platform; for drawing batches.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  /// A number from 0, 1, ... bound - 1.
  int64_t below(int64_t bound);

 private:
  uint64_t state_;
};

}  // namespace training
