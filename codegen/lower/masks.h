// The argument of a backward op that says which of its outputs are wanted (`optional_outputs`).
#pragma once

#include <vector>

#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

/// Whether code for that runtime leaves out outputs: it asks for gradients, and has masks.
bool takes_masks(const Runtime& runtime);
/// Adds an attribute `int64_t wanted`, with a bit for each output, to each op with `optional_outputs`, as its last
/// argument, and to the `forward` of its own backward op. The functions that the op names do not get it. For files that
/// have been checked.
void add_masks(std::vector<Family>& families);
/// The index of that attribute, or -1.
int mask_of(const Op& op);
/// True for an output that calls leave out where the mask does. Lists are always computed.
bool is_masked(const Op& op, int output);

}  // namespace shardgen
