// Parts of a backward program: of one group of outputs, and of those of its outputs that have a gradient.
#pragma once

#include "program/split.h"

namespace shard::program {

/// A part of a backward program, which computes the gradients of one group.
struct BackwardPart {
  Program program;
  /// Of the whole program, by number: those that the part reads. Inputs with higher numbers than the whole program has are zeros of their types.
  std::vector<size_t> inputs, parameters;
  std::vector<size_t> outputs;  // of the function, by number in TracedGradient::outputs
  std::vector<size_t> wanted;   // likewise
};

/// One part per group; a single one where backward writes what it is given or draws random numbers, which only the whole may do.
std::vector<BackwardPart> parts_of(const Split& split, const TracedGradient& gradient);

/// `part` where only some of its outputs have a gradient (`given`, by part.outputs). Steps that only the other gradients lead to are left out, as in eager backward: they
/// would make NaN of zeros and infinities. Where a step with a gradient also reads one of theirs, that is zeros. Gradients of what no given output was computed from
/// have no value.
BackwardPart narrow(const Split& split, const TracedGradient& gradient, const BackwardPart& part,
                    const std::vector<bool>& given);

}  // namespace shard::program
