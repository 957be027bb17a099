// Cache keys for calls of a captured function: everything that capture depends on, as numbers.
#pragma once

#include "shard/call/plan_cache.h"
#include "shard/program/exec/executor.h"

namespace shard::program {

using call::KeyWords;

/// The part of the key that is known from the call alone, before a program is chosen.
KeyWords key_of(const std::vector<Tensor>& inputs);
/// The types of parameters. A program determines which tensors are its parameters.
KeyWords types_key(const std::vector<Tensor>& parameters);
/// Which inputs and parameters share which bytes, and which of them are copies of which.
KeyWords sharing_key(const Arguments& arguments);

/// True if types_key(parameters) equals `known`. Allocates nothing.
bool has_types(const KeyWords& known, const std::vector<Tensor>& parameters);
bool has_sharing(const KeyWords& known, const Arguments& arguments);

}  // namespace shard::program
