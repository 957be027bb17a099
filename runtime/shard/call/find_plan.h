// The second part of a distributed call: finds its plan in the cache of the rank, or makes it, and
// checks that the call may be made now. Nothing is sent or written before that.
#pragma once

#include <functional>

#include "shard/call/call_args.h"
#include "shard/call/infer_call.h"
#include "shard/core/export.h"

namespace shard::call {

/// Runs the dense function of a call on storage-less local shards of the plan. Empty for an op that
/// only reinterprets its input.
using DryRun = std::function<void(const CallPlan& plan, DryLauncher& launcher, AxisReducer& reducer)>;

/// Makes the plan and adds it to the cache: infers the global metas, checks that there is a kernel,
/// and calls plan_call and bind_plan.
SHARD_API const CallPlan& make_plan(const CallArgs& args, uint64_t hash, const InferEntry& infer,
                                    const DryRun& dry_run);
/// The checks that depend on the current state, and are therefore made even if the plan is cached:
/// whether the targets may be written, and whether policies allow the communication. Needed only
/// for a plan that writes targets or sends. Sets Extras::moment.
SHARD_API void check_call(CallArgs& args, const CallPlan& plan);

/// True for a tensor that is a view of another one, either in the same buffer or as a resharded
/// copy.
inline bool is_view(const DistTensorImpl& x) {
  const Storage& storage = *x.value.storage();
  return storage.detachment() != nullptr || (x.grad.root && x.grad.root->value.storage().get() == &storage);
}

/// The plan of a call that is allowed now. `dry_run` is convertible to DryRun.
template <class Run>
const CallPlan& find_plan(CallArgs& args, const InferEntry& infer, const Run& dry_run) {
  args.check_readable();
  const uint64_t hash = hash_words(args.key);
  const CallPlan* plan = args.cache.find(args.key, hash);
  try {
    if (plan == nullptr) plan = &make_plan(args, hash, infer, dry_run);
    if (plan->checked || args.extras() != nullptr) check_call(args, *plan);
  } catch (const Error& error) { args.rethrow(error); }
  return *plan;
}

}  // namespace shard::call
