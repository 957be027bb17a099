// The planner of layout changes: a cheapest sequence of steps between two layouts of one tensor on one mesh.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/spec.h"

namespace shard {

/// One step of a layout change. All steps but relayout act along one mesh axis.
struct ReshardStep {
  enum class Kind : uint8_t {
    all_gather,      // the axis stops sharding `dim`
    all_to_all,      // the axis moves from sharding `dim` to sharding `to_dim`
    reduce_scatter,  // the pending reduction is done, and the axis shards `to_dim`
    all_reduce,      // the pending reduction is done
    slice,           // the axis starts sharding `to_dim`; no communication
    partial_init,    // the value becomes one contribution, the others the identity of `type`; no communication
    relayout         // row-major elements go to the owner in another shape and layout
  };
  Kind kind;
  int axis = 0;
  int dim = 0;
  int to_dim = 0;
  ReduceType type = ReduceType::sum;
  Layout before;
  Layout after;
  Dims dims;        // global shape before the step
  Dims after_dims;  // and after it (differs for relayout only)
  int64_t bytes = 0;  // sent by all ranks of the mesh together
};

/// How a tensor gets from one layout to another. A pure value, equal on all ranks; costed, printed and executed.
struct ReshardPlan {
  Meta meta;        // global, before
  Meta after_meta;  // global, after
  const DistSpec* from = nullptr;
  const DistSpec* to = nullptr;
  std::vector<ReshardStep> steps;
  int64_t bytes = 0;  // sent by all ranks of the mesh together

  /// "all_gather(tp, dim 1) 256 B, slice(tp, dim 0)"
  std::string describe() const;
};

/// A cheapest plan from `from` to `to` (layouts on one mesh) for a tensor of this global meta, by time in an alpha-beta
/// model. Throws layout when the meshes differ.
std::shared_ptr<const ReshardPlan> plan_reshard(const Meta& meta, const DistSpec* from, const DistSpec* to);

/// The plan of one relayout step: the tensor seen as `after` in layout `to`, same elements in row-major order. Partial axes
/// must be the same on both sides.
std::shared_ptr<const ReshardPlan> plan_relayout(const Meta& meta, const DistSpec* from, const Dims& after, const DistSpec* to);

/// Half-open ranges of row-major element indices that a piece covers, in order.
struct IndexRun {
  int64_t begin;
  int64_t end;
};
std::vector<IndexRun> index_runs(const Dims& global, const Piece& piece);
/// The part of `a` that is also in `b`.
std::vector<IndexRun> intersect(const std::vector<IndexRun>& a, const std::vector<IndexRun>& b);
/// True when `receiver` takes what it needs of the piece at `sender` from there, and not from another holder of that piece.
bool sends_to(const Layout& from, const Coordinate& sender, const Coordinate& receiver);

}  // namespace shard
