// Counts the bytes that the kernel of a distributed call sends when it combines or fetches values over mesh
// axes. The dry kernel that is registered for it reports them.
#include "shard/call/fetch_boxes.h"
#include "shard/call/plan_checks.h"
#include "shard/kernels/registry.h"

namespace shard::call {
namespace {

int64_t ranks_along(const ProcessMesh& mesh, const AxisList& axes) {
  int64_t ranks = 1;
  for (int i = 0; i < axes.size(); ++i) ranks *= mesh.size(axes[i]);
  return ranks;
}

/// Counts the bytes that all groups along the axes send, and sends nothing.
class CountingReducer final : public AxisReducer {
 public:
  /// `at` is the coordinate of a rank of the group, which has the coordinate 0 along the axes.
  CountingReducer(const CallPlan& plan, const Coordinate& at)
      : plan_(plan), at_(at), mesh_(*plan.mesh), axes_(plan.reduce_axes) {}
  Fetched fetch(size_t i, const DenseTensor& shard, const NeededBox& needed) override {
    const FetchedBoxes boxes(plan_, i, needed);
    Coordinate at = at_;
    do {
      if (!boxes.axes().empty()) bytes += boxes.received(at) * static_cast<int64_t>(size_of(shard.dtype()));
    } while (next_place(mesh_, axes_, at));
    return {shard, boxes.held(at_).begin};
  }
  void all_reduce(DenseTensor& value, ReduceType) override {
    for (int i = 0; i < axes_.size(); ++i) {
      // A group sends 2n(k - 1) elements: a reduce-scatter and an all-gather.
      int64_t elements = 2 * value.numel() * (mesh_.size(axes_[i]) - 1);
      for (int j = 0; j < axes_.size(); ++j) elements *= j == i ? 1 : mesh_.size(axes_[j]);
      bytes += elements * static_cast<int64_t>(size_of(value.dtype()));
    }
  }
  Gathered all_gather(const DenseTensor& value) override {
    // Each rank sends its value to all others, on the way along one axis after the other.
    const int64_t ranks = ranks_along(mesh_, axes_);
    bytes += ranks * (ranks - 1) * static_cast<int64_t>(value.meta().bytes());
    return {value, 0};
  }
  int64_t bytes = 0;

 private:
  const CallPlan& plan_;
  const Coordinate& at_;
  const ProcessMesh& mesh_;
  const AxisList& axes_;
};

/// The axes along which local shards differ, without those that the kernel reduces over: the
/// members of such a group combine tensors of one shape.
AxisList differing_axes(const CallPlan& plan) {
  AxisList axes;
  for (int axis = 0; axis < plan.mesh->rank(); ++axis) {
    if (plan.mesh->size(axis) == 1 || plan.reduce_axes.contains(axis)) continue;
    bool shards = false;
    for (const InputPlan& input : plan.inputs)
      shards = shards || (input.want != nullptr && input.want->layout().dim_of(axis) >= 0);
    for (const OutputPlan& output : plan.outputs)
      shards = shards || (output.spec != nullptr && output.spec->layout().dim_of(axis) >= 0);
    if (shards) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

/// The count must be equal on all ranks. So the dry kernel runs once for each local shape that some
/// rank has, as in a dry world.
void count_kernel(const CallArgs& args, CallPlan& plan, DryRun dry_run) {
  const ProcessMesh& mesh = *args.mesh;
  const AxisList axes = differing_axes(plan);
  const int64_t group = ranks_along(mesh, plan.reduce_axes);
  if (group == 1) return;
  if (args.op.kernel.empty() || !kernel_table(args.op.kernel.data()).has_dry()) {
    plan.kernel_bytes_unknown = plan.checked = true;
    return;
  }
  Coordinate at{};
  CountingReducer reducer(plan, at);
  MemoryMeter meter;
  DryLauncher launcher(meter);
  do {
    bind_plan(plan, at);
    dry_run(plan, launcher, reducer);
  } while (next_place(mesh, axes, at));
  plan.kernel_bytes = reducer.bytes * (mesh.size() / group / ranks_along(mesh, axes));
  plan.bytes += plan.kernel_bytes;
  plan.checked = plan.checked || plan.kernel_bytes != 0;
}

}  // namespace shard::call
