// Parts of a backward program: the part for one group of outputs, narrowed to those of its outputs
// that have a gradient.
#pragma once

#include "shard/program/capture/split.h"

namespace shard::program {

/// A part of a backward program, which computes the gradients of one group.
struct BackwardPart {
  Program program;
  /// The inputs and parameters of the whole backward program that the part reads, by number. Inputs
  /// with higher numbers than the whole program has are zeros of their types.
  std::vector<size_t> inputs, parameters;
  std::vector<size_t> outputs;  // outputs of the function, as indices into TracedGradient::outputs
  std::vector<size_t> wanted;   // likewise, as indices into TracedGradient::wanted
};

/// One part per group. A single part if backward writes its inputs or draws random numbers, because
/// only the whole pass may do that.
std::vector<BackwardPart> parts_of(const Split& split, const TracedGradient& gradient);

/// `part` for the case that only some of its outputs have a gradient (`given`, indexed like
/// part.outputs). Steps that only the other gradients lead to are left out, as in eager backward:
/// they would compute NaN from zeros and infinities. If a step with a gradient also reads one of
/// the missing gradients, it reads zeros. The gradient of a tensor that no given output was
/// computed from has no value.
BackwardPart narrow(const Split& split, const TracedGradient& gradient, const BackwardPart& part,
                    const std::vector<bool>& given);

}  // namespace shard::program
