// From functions to programs: a function is run once on tensors without bytes, and what it does is written down.
#pragma once

#include <functional>
#include <vector>

#include "program/program.h"
#include "program/scope.h"

namespace shard::program {

/// What can be captured: tensors to tensors. It may read and write tensors from outside too, and call backward.
using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

/// A tensor from outside that a program uses, as it was when the function was captured.
struct Parameter {
  Tensor tensor;               // undefined for the gradient of a leaf
  Tensor leaf;                 // defined where it is the gradient of this leaf, which each run asks for anew
  int leaf_input = -1;         // the same of this input of the call
  bool requires_grad = false;  // and the function ran with gradients recorded
  bool constant = false;       // the function makes it from its elements (Tensor::from_data): nobody else has it
};

/// A leaf whose gradient a program reads or leaves.
struct Leaf {
  Tensor tensor;     // undefined for an input
  size_t input = 0;  // which one
  ValueId value = 0;
  bool had_gradient = false;  // before the function ran
};

/// The gradient of a function, which is part of its program: inputs of that are the gradients of outputs too, and its outputs the gradients
/// of inputs and parameters.
struct TracedGradient {
  size_t forward_ops = 0;    // the ops from there on compute gradients
  uint64_t world_draws = 0;  // keys that the ops before draw
  uint64_t plain_draws = 0;
  size_t function_inputs = 0;  // of program.inputs; then come the gradients of `outputs`
  size_t function_outputs =
      0;  // of program.outputs; then come the gradients of `wanted`, without a value where no output depends on one
  std::vector<size_t> outputs;  // of the function, that have a gradient
  std::vector<ValueId> wanted;  // the inputs and parameters that require gradients
  // Outputs that have no step in common are of different groups, so that each group has a backward pass of its own: the number of the group of
  // each output, and of each wanted gradient. An input or parameter on which several groups depend is wanted once for each.
  std::vector<size_t> output_groups, wanted_groups;
  std::vector<std::vector<size_t>>
      reaches;  // by each of `outputs`: of which of `wanted` it was computed; empty: each of all
  std::string
      error;  // why there is no backward pass, as backward will say: the program has no ops, inputs and outputs for it
};

/// How many groups of outputs there are.
size_t group_count(const TracedGradient& gradient);

/// An output that is a view of what had to move: it has parted from its source, which the caller can still write.
struct DetachedOutput {
  size_t output = 0;
  ValueId source = 0;                  // an input, parameter or other output, or of its tree
  bool stale = false;                  // the function has written the source since
  std::string op, argument, from, to;  // for messages: as Detachment
};

/// An output that is a view, whose history follows what it is a view of.
struct ViewOutput {
  size_t output = 0;
  ValueId source = 0;  // an input or parameter; 0: another output
  size_t other = 0;    // which: what it is a view of, or another view of the same
};

/// A captured function.
struct Trace {
  Program program;
  std::vector<Parameter> parameters;  // of program.parameters
  std::vector<bool>
      require_grad;  // by input of the function: whether it does, and the function ran with gradients recorded
  std::vector<Leaf> leaves;
  size_t written =
      0;  // the last outputs of the function are arguments that it has given a history in place, and not returned
  std::vector<DetachedOutput> detached;
  std::vector<ViewOutput> views;
  std::optional<TracedGradient> gradient;  // where outputs require one
};

/// Runs `function` without computing anything, and gives the program of what it does. `inputs` are examples: shapes, dtypes, layouts, which of
/// them require gradients and which share buffers; they are not changed. Tensors from outside become parameters, with their names in `scope`;
/// the others are called p0, p1, ..., but for names that `scope` has. What the function makes from elements (Tensor::from_data) are constants of the
/// program. A function that uses an input from outside too, and its gradient, runs twice. Throws capture for what a program cannot hold: values that decide what is done, results whose shape
/// comes from data, tensors from outside that get another shape, layout or history.
///
/// Where outputs require gradients, their backward pass is captured too: from gradients in the layouts of the outputs (whole where those are
/// pending) to those of the inputs and parameters. Outputs whose steps the function itself has gone through backwards count as values.
Trace trace(const Function& function, const std::vector<Tensor>& inputs, const Scope* scope = nullptr);

}  // namespace shard::program
