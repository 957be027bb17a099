// Tracing: a function runs once on storage-less tensors, and what it does is recorded as a program.
#pragma once

#include <functional>
#include <vector>

#include "shard/core/export.h"
#include "shard/program/ir/program.h"
#include "shard/program/ir/scope.h"

namespace shard::program {

/// A function that can be captured, from tensors to tensors. It may also read and write tensors
/// from outside, and call backward.
using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

/// A tensor from outside that a program uses, as it was when the function was captured.
struct Parameter {
  Tensor tensor;               // undefined for the gradient of a leaf
  Tensor leaf;                 // set for the gradient of this leaf, which each run reads anew
  int leaf_input = -1;         // set for the gradient of this input of the call
  bool requires_grad = false;  // and the function ran with gradients recorded
  bool constant = false;       // the function creates it from elements (Tensor::from_data), so nobody else has it
};

/// A leaf whose gradient a program reads or leaves.
struct Leaf {
  Tensor tensor;     // undefined for an input
  size_t input = 0;  // the number of the input
  ValueId value = 0;
  bool had_gradient = false;  // before the function ran
};

/// The gradient of a function as part of its program: the program has the gradients of outputs as
/// further inputs, and the gradients of inputs and parameters as further outputs.
struct TracedGradient {
  size_t forward_ops = 0;    // the ops from this one on compute gradients
  uint64_t world_draws = 0;  // keys that the ops before it draw
  uint64_t plain_draws = 0;
  size_t function_inputs = 0;  // in program.inputs; the gradients of `outputs` follow
  // In program.outputs. The gradients of `wanted` follow, without a value if no output depends on
  // the tensor.
  size_t function_outputs = 0;
  std::vector<size_t> outputs;  // the outputs of the function that have a gradient
  std::vector<ValueId> wanted;  // the inputs and parameters that require gradients
  // The number of the group of each output, and of each wanted gradient. Outputs that have no step
  // in common are in different groups, so that each group has a backward pass of its own. An input
  // or parameter on which several groups depend is wanted once for each.
  std::vector<size_t> output_groups, wanted_groups;
  // For each of `outputs`: which of `wanted` it was computed from. Empty: each output from all of
  // them.
  std::vector<std::vector<size_t>> reaches;
  // Why there is no backward pass: the error that backward throws. The program has no ops, inputs
  // and outputs for it.
  std::string error;
};

/// The number of groups of outputs.
SHARD_API size_t group_count(const TracedGradient& gradient);

/// An output that is a view of a resharded copy: a stale copy once its source is written, which the
/// caller can still do.
struct DetachedOutput {
  size_t output = 0;
  ValueId source = 0;                  // an input, parameter or other output, or a value in the tree of one
  bool stale = false;                  // the function has written the source since
  std::string op, argument, from, to;  // for messages, like those of Detachment
};

/// An output that is a view and follows the history of its base.
struct ViewOutput {
  size_t output = 0;
  ValueId source = 0;  // an input or parameter; 0: another output
  size_t other = 0;    // the number of that output: the base, or another view of the same base
};

/// A captured function.
struct Trace {
  Program program;
  std::vector<Parameter> parameters;  // of program.parameters
  // For each input of the function: whether it requires a gradient and the function ran with
  // gradients recorded.
  std::vector<bool> require_grad;
  std::vector<Leaf> leaves;
  // The number of outputs at the end that the function does not return: arguments to which it has
  // given a history in place.
  size_t written = 0;
  std::vector<DetachedOutput> detached;
  std::vector<ViewOutput> views;
  std::optional<TracedGradient> gradient;  // if outputs require one
};

/// Runs `function` without computing anything, and returns the program of what it does. `inputs`
/// are examples and are not changed: what matters is their shapes, dtypes and layouts, which of
/// them require gradients and which share buffers.
///
/// Tensors from outside become parameters, named as in `scope`. The others are called p0, p1, ...,
/// skipping names that `scope` has. Tensors that the function creates from elements
/// (Tensor::from_data) are constants of the program. A function that also uses an input from
/// outside, and its gradient, runs twice.
///
/// Throws capture for what a program cannot hold: control flow that depends on values, results
/// whose shape comes from data, and tensors from outside that get another shape, layout or history.
///
/// If outputs require gradients, their backward pass is captured too: from gradients in the layouts
/// of the outputs (replicated along axes where an output is pending) to those of the inputs and
/// parameters. Outputs whose steps the function itself has gone through backwards count as values
/// without a gradient.
SHARD_API Trace trace(const Function& function, const std::vector<Tensor>& inputs, const Scope* scope = nullptr);

}  // namespace shard::program
