// A program with its backward pass becomes two: forward, which also gives what backward needs, and backward.
#pragma once

#include "program/trace.h"

namespace shard::program {

/// How backward gets a value of forward that it reads, and the caller an output.
enum class Held : uint8_t {
  own,     // forward gives it, in a buffer of the call
  source,  // it is in the buffer of an input or parameter, through views and in-place ops alone: that stands in its place
  copied,  // it is in such a buffer, and forward writes that: forward gives a copy, so that another run before backward does no harm
  shape_only,  // backward reads its shape alone
};

/// A value that passes from forward to backward.
struct Middle {
  ValueId value = 0;  // in the joint program
  Held held = Held::own;
  ValueId source = 0;    // the input or parameter, in the joint program
  int output = -1;       // of forward, that gives it: its place in forward.outputs
  bool visible = false;  // the caller sees the buffer, so that its version is checked before backward reads it
};

struct Split {
  Program forward;     // inputs, parameters and outputs of the joint program, then the middles that it gives
  size_t outputs = 0;  // of the function, which come first
  Program
      backward;  // inputs: the middles, then the gradients of outputs; parameters: inputs and parameters of the joint program that it reads
  std::vector<Middle> middles;   // of backward.inputs
  std::vector<ValueId> sources;  // of backward.parameters, in the joint program
};

/// Splits a program whose function has a gradient.
Split split(const Trace& trace);

/// The input or parameter whose buffer a value is in, through views and in-place ops; 0: none.
ValueId source_of(const Program& program, ValueId value);

}  // namespace shard::program
