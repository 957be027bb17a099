// Reshard plans as values: the steps between two layouts of one tensor, with the bytes they send,
// the memory they take and their cost.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shard/comm/collective.h"
#include "shard/core/export.h"
#include "shard/dist/policies.h"
#include "shard/dist/spec.h"

namespace shard {

/// One step of a reshard. The layouts before and after determine what it does. The kind is a name
/// for people, and distinguishes steps with a reduction from the others.
struct ReshardStep {
  enum class Kind : uint8_t {
    all_gather,  // axes stop sharding dims, last ones first
    all_to_all,  // an axis moves from one dim to another
    permute,     // each dim keeps its number of shards, held by other processes
    // any other change within a mesh: shards are cut into boxes, each box is sent to the processes
    // that need it
    exchange,
    send_recv,       // the same between two meshes
    reduce_scatter,  // a pending reduction is done, and its axis shards a dim
    all_reduce,      // a pending reduction is done
    slice,           // axes start to shard dims; no communication
    // one process keeps the value as its contribution, the others get the identity of `type`; no
    // communication
    partial_init,
    // every process keeps its shard (axes of one process change, or there are no elements); no
    // communication
    copy,
    relayout  // row-major elements are sent to their owners in another shape and layout
  };
  Kind kind = Kind::copy;
  AxisList axes;                       // the mesh axes along which it acts; none for send_recv
  ReduceType type = ReduceType::sum;   // of reductions and partial_init
  DType dtype = DType::float32;        // the dtype of the elements that are sent
  DType after_dtype = DType::float32;  // the dtype to which they are converted at the end
  Layout before;
  Layout after;     // on another mesh for send_recv
  Dims dims;        // global shape before the step
  Dims after_dims;  // and after it (differs for relayout only)
  /// The mesh of the processes that take part: a mesh of the step's axes, or the union of two
  /// meshes as one axis. With one axis, the group is the processes along it.
  const ProcessMesh* group = nullptr;
  int64_t bytes = 0;      // sent by all ranks together
  int64_t bytes_max = 0;  // sent by the rank that sends most
  int64_t peak = 0;       // bytes of tensors on the fullest rank during the step, including the plan's input
  double ns = 0;          // predicted

  /// The axis of `group` along which its collective runs; -1: over the whole group.
  int group_axis() const { return axes.size() == 1 && kind != Kind::relayout ? axes[0] : -1; }
  bool reduces() const { return kind == Kind::reduce_scatter || kind == Kind::all_reduce; }
};
SHARD_API std::string_view to_string(ReshardStep::Kind kind);

/// How a tensor is resharded from one layout to another. A pure value, equal on all ranks; costed,
/// printed and executed.
struct SHARD_API ReshardPlan {
  Meta meta;        // global, before
  Meta after_meta;  // global, after
  const DistSpec* from = nullptr;
  const DistSpec* to = nullptr;
  SumPolicy sums = SumPolicy::float32;
  std::vector<ReshardStep> steps;
  int64_t bytes = 0;      // sent by all ranks together
  int64_t bytes_max = 0;  // the sum of the steps' bytes_max
  // bytes on the fullest rank: the input, which its caller keeps, and what a step reads and writes
  int64_t peak = 0;
  double ns = 0;  // predicted, by the costs of the mesh

  /// Bytes and predicted time of the steps along one axis of `mesh`, or (axis -1) over all
  /// processes of `mesh`. The latter are steps along several axes, relayouts, and steps whose
  /// `group` is the union of two meshes.
  int64_t bytes_along(const ProcessMesh* mesh, int axis) const;
  double ns_along(const ProcessMesh* mesh, int axis) const;
  /// "all_gather(tp, dim 1) 256 B, slice(tp, dim 0)"
  std::string describe() const;
  /// A line per step (axes, dims, bytes, predicted time, peak), and lines with the totals: all, and per communicator.
  std::string explain() const;
};

/// A plan of least predicted time from `from` to `to`, on one mesh or two, for a tensor of this
/// global meta. With a memory cap (bytes on one rank; 0 uses the cap of `from`'s mesh, if it has
/// one), the fastest plan whose peak is within it. Throws layout when the layouts do not fit the
/// tensor, and policy when no plan is within the cap, with the smallest possible peak. `cause` is
/// for these messages.
SHARD_API std::shared_ptr<const ReshardPlan> plan_reshard(const Meta& meta, const DistSpec* from, const DistSpec* to,
                                                          int64_t memory_cap = 0,
                                                          CommCause cause = {"reshard", "tensor"},
                                                          SumPolicy sums = SumPolicy::float32);

/// True when the layouts differ only in mesh axes of size 1, which split nothing and leave nothing
/// pending: every process has the same elements in both. The exception is a pending any or all of
/// numbers, whose result is 0 or 1 even with one contribution.
SHARD_API bool same_value(DType dtype, const DistSpec* from, const DistSpec* to);

/// Whether values of `dtype` are lost by resharding from one layout to another: into a pending any
/// or all, whose result is 0 or 1, or into a pending average of integers, for which they are
/// multiplied by the number of ranks and may wrap around.
SHARD_API bool loses_values(DType dtype, const DistSpec& from, const DistSpec& to);

/// The plan of one relayout step: the tensor viewed as `after` in layout `to`, with the same
/// elements in row-major order. Both layouts are on one mesh; partial axes must be the same on both
/// sides.
SHARD_API std::shared_ptr<const ReshardPlan> plan_relayout(const Meta& meta, const DistSpec* from, const Dims& after,
                                                           const DistSpec* to, SumPolicy sums = SumPolicy::float32);

}  // namespace shard
