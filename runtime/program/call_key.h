// How a call of a captured function finds its program: by what capture depends on, as numbers.
#pragma once

#include "call/plan_cache.h"
#include "program/executor.h"

namespace shard::program {

using call::KeyWords;

/// What is known of a call before any program is.
KeyWords key_of(const std::vector<Tensor>& inputs);
/// The types of parameters, which are known of a program alone.
KeyWords types_key(const std::vector<Tensor>& parameters);
/// Which inputs and parameters share which bytes, and which are copies of which.
KeyWords sharing_key(const Arguments& arguments);

/// Whether the key would be `known`; allocates none.
bool has_types(const KeyWords& known, const std::vector<Tensor>& parameters);
bool has_sharing(const KeyWords& known, const Arguments& arguments);

}  // namespace shard::program
