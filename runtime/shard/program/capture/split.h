// Splits a program with its backward pass into two: a forward program, which also returns the
// residuals, and a backward program.
#pragma once

#include "shard/core/export.h"
#include "shard/program/capture/trace.h"

namespace shard::program {

/// How backward gets a value of forward that it reads, and how the caller gets an output.
enum class Held : uint8_t {
  own,  // forward returns it, in a buffer of the call
  // It is in the buffer of an input or parameter, through views and in-place ops alone. That tensor
  // takes its place.
  source,
  // It is in such a buffer, and forward writes the buffer. Forward returns a copy, so that another
  // run before backward does no harm.
  copied,
  shape_only,  // backward reads only its shape
};

/// A residual: a value that forward passes to backward.
struct Residual {
  ValueId value = 0;  // in the joint program
  Held held = Held::own;
  ValueId source = 0;    // the input or parameter, in the joint program
  int output = -1;       // the index in forward.outputs of the output that has it
  bool visible = false;  // the caller sees the buffer, so backward checks its version before it reads it
};

struct Split {
  Program forward;     // inputs, parameters and outputs of the joint program, then the residuals that it returns
  size_t outputs = 0;  // number of outputs of the function, which come first
  // Inputs: the residuals, then the gradients of outputs. Parameters: the inputs and parameters of
  // the joint program that it reads.
  Program backward;
  std::vector<Residual> residuals;  // for backward.inputs
  std::vector<ValueId> sources;     // for backward.parameters, in the joint program
};

/// Splits a program whose function has a gradient.
SHARD_API Split split(const Trace& trace);

/// The input or parameter whose buffer a value is in, through views and in-place ops; 0 if there is
/// none.
SHARD_API ValueId source_of(const Program& program, ValueId value);

}  // namespace shard::program
