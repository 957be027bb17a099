// Random programs of differentiable ops with views, in-place writes, detach and scopes without recording: how they
// are drawn, run and printed. random_graph_test.cc runs them on meshes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shard/core/tensor.h"
#include "shard/testing/shards.h"

namespace shard::test {

/// A function that steps call.
struct Kind {
  enum Trait : unsigned {
    none = 0,
    view = 1,     // its result may share the buffer of its operand, or be detached from it if a reshard was needed
    writes = 2,   // it writes operand 0 and has no results
    bent = 4,     // it has points without a derivative
    impure = 8,   // its gradient is not its derivative
    reshard = 16  // the result is in another layout; attribute 0 is the seed from which it is drawn
  };
  const char* name;
  size_t operands;
  unsigned traits;
  double most;  // the largest allowed operand, so that values stay small
  /// Attributes for operands of these shapes; nothing where they do not fit.
  std::function<std::optional<IntArray>(testing::Random& random, const std::vector<Dims>& operands)> draw;
  std::function<testing::Tensors(testing::Tensors& operands, const IntArray& attributes)> run;

  bool has(Trait trait) const { return (traits & trait) != 0; }
};
const std::vector<Kind>& kinds();

/// One call. Tensors have numbers: leaves from 0 on, then the results of the steps.
struct Step {
  const Kind* kind;
  std::vector<int> operands;
  IntArray attributes;
  bool no_grad;  // under NoGrad
  std::vector<int> results;
};

struct RandomProgram {
  uint64_t seed = 0;  // of the values of its leaves, for which its own values stay small
  std::vector<Dims> leaves;
  std::vector<Step> steps;
  std::vector<int> outputs;

  bool has(Kind::Trait trait) const;
};

using ProgramValues = std::map<int, Tensor>;

/// Reshards a tensor to the layout drawn from a seed.
using Mover = std::function<Tensor(const Tensor& x, uint64_t seed)>;

/// Runs a step on plain or distributed tensors. A step whose operands are missing, because steps before it were
/// left out, does nothing. Returns the code of the Error that it threw, or "".
std::string run_step(const Step& step, ProgramValues& values, const Mover& move);

struct ProgramOptions {
  bool bent = true;    // ops that have points without a derivative
  bool impure = true;  // detach, NoGrad, and calls that are errors
};
/// A program that runs on plain tensors, except for a few calls that are errors there.
RandomProgram draw_program(testing::Random& random, const ProgramOptions& options);
/// Values of its leaves: multiples of 2^-12, so that contributions to a pending sum add up exactly.
testing::Tensors draw_leaves(const RandomProgram& program);

/// A line for each step.
std::string to_string(const RandomProgram& program);

/// Removes steps and outputs from the program while `fails` stays true.
RandomProgram shrink(RandomProgram program, const std::function<bool(const RandomProgram&)>& fails);

}  // namespace shard::test
