// What is computed for a new plan of a distributed call from its op: the bytes that the kernel
// sends, and whether the placement rule fits the op.
#pragma once

#include "shard/call/find_plan.h"

namespace shard::call {

/// Sets the bytes that the kernel sends when it combines values over mesh axes.
void count_kernel(const CallArgs& args, CallPlan& plan, DryRun dry_run);
/// Throws internal if the local shapes that the rule implies for outputs differ from those that the
/// op computes from its local inputs. `ctx` is that of the kernel.
void check_rule(const OpContext& ctx, const CallArgs& args, const CallPlan& plan, const InferEntry& infer);

}  // namespace shard::call
