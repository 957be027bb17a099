// Where what a rank fetched of a tensor is in the whole of it.
#pragma once

#include "shard/core/op_context.h"

namespace shard::cpu {

inline ShardBox box_of(const Fetched& fetched) { return {fetched.begin, fetched.tensor.dims()}; }

}  // namespace shard::cpu
