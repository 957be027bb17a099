#include "shard/call/dist_call.h"

#include "shard/call/find_plan.h"

namespace shard::call {

void DistCall::run_kernel(const InferEntry& infer, FunctionRef<void()> kernel) {
  const auto dry_run = [&](const CallPlan& plan, DryLauncher& launcher, AxisReducer& reducer) {
    execution_.run_dry(plan, launcher, reducer, kernel);
  };
  execution_.run(find_plan(args_, infer, dry_run), infer, kernel);
}

void DistCall::reinterpret(const InferEntry& infer) {
  const auto kernel = [&] { execution_.reinterpret(); };
  execution_.run(find_plan(args_, infer, nullptr), infer, kernel);
}

}  // namespace shard::call
