// Asks whether a composite may run its calls as one loop.
#pragma once

#include "shard/autograd/record.h"
#include "shard/call/fused_calls.h"

namespace shard::external {

/// True if call::run_fused may run calls with these tensors, and a result of that many elements makes that worth while.
template <class... Tensors>
bool fuses(int64_t elements, const Tensors&... tensors) {
  return elements >= call::kFusedElements && call::may_fuse(tensors...) && !autograd::records(tensors...);
}

}  // namespace shard::external
