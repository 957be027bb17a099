// The second part of a distributed call: finds its plan in the cache of the rank, or makes it, and
// checks that the call may be made now. Nothing is sent or written before that.
#pragma once

#include "shard/call/call_args.h"
#include "shard/call/infer_call.h"
#include "shard/core/export.h"
#include "shard/core/function_ref.h"

namespace shard::call {

/// Runs the dense function of a call on storage-less local shards of the plan. Refers to nothing for an op that
/// only reinterprets its input.
using DryRun = FunctionRef<void(const CallPlan& plan, DryLauncher& launcher, AxisReducer& reducer)>;

/// The plan of a call that is allowed now, from the cache or made by plan_call and bind_plan and added to it. A new
/// plan infers the global metas and checks that there is a kernel.
SHARD_API const CallPlan& find_plan(CallArgs& args, const InferEntry& infer, DryRun dry_run);

/// True for a tensor that is a view of another one, either in the same buffer or as a resharded
/// copy.
inline bool is_view(const DistTensorImpl& x) {
  const Storage& storage = *x.value.storage();
  return storage.detachment() != nullptr || (x.grad.root && x.grad.root->value.storage().get() == &storage);
}

}  // namespace shard::call
