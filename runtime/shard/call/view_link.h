// Keeps a copy in sync with the tensor that it was made from: the reshards between the two, the
// bytes that they send, and when they run.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shard/comm/collective.h"
#include "shard/core/dense_tensor.h"
#include "shard/core/export.h"
#include "shard/dist/world.h"
#include "shard/reshard/plan.h"

namespace shard::call {

struct PlannedTraffic;

/// Reshard plans that are executed one after the other.
using ReshardPlans = std::vector<std::shared_ptr<const ReshardPlan>>;

/// One of the two tensors that a link connects: this rank's local shard, its global meta and its
/// layout.
struct LinkEnd {
  DenseTensor shard;
  Meta global;
  const DistSpec* spec;
};

/// The plans that reshard one tensor to another one with the same elements, in row-major order.
SHARD_API ReshardPlans plan_between(const Meta& from_meta, const DistSpec* from, const Meta& to_meta,
                                    const DistSpec* to, SumPolicy sums);

/// The reshards between a source and a copy of it in another layout or shape. The copy's Detachment
/// owns the link, so the link does not own the copy.
///
/// A copy of a copy is synchronised directly with the source of the first copy, by reshards between
/// these two, so no buffer between them is kept. This holds from the start, not only once the
/// tensor between them is gone: ranks may drop tensors at different times, and what is sent must
/// not depend on that.
class SHARD_API ViewLink {
 public:
  /// One of the two plans may be null. It is then made when it is needed.
  ViewLink(Rank& rank, DenseTensor source, const DenseTensor& copy, std::shared_ptr<const ReshardPlan> forth,
           std::shared_ptr<const ReshardPlan> back, CommCause cause);

  /// Reshards the bytes of the source into the copy, or back.
  void refresh();
  void write_back();
  const ReshardPlans& forth();
  const ReshardPlans& back();
  /// Makes `copy` a copy of the source as it was at `version`. Only the directions that lose no
  /// values are set. An empty `argument` means that `op` gave the source a new buffer and left the
  /// old one to the copy.
  static void attach(const std::shared_ptr<ViewLink>& link, const Ref<Storage>& copy, uint64_t version, const char* op,
                     std::string_view argument, std::string from, std::string to);
  /// The link of a detached storage; null if there is none.
  static ViewLink* of(const Storage& copy);
  /// The tensor that `tensor` is kept in sync with: its source if it is a copy that can be
  /// resharded both ways, else `tensor` itself.
  static LinkEnd source_of(LinkEnd tensor);

 private:
  DenseTensor copy() const;
  /// Makes the copy a copy of `source`, which now has the same value as the old source. Returns the
  /// old source.
  DenseTensor follow(const LinkEnd& source);

  Rank& rank_;
  LinkEnd source_;
  Storage* copy_;
  Meta copy_meta_;  // meta of this rank's shard
  uint32_t copy_symbol_;
  Meta copy_global_;
  const DistSpec* copy_spec_;
  ReshardPlans forth_, back_;  // empty until they are needed
  const SumPolicy sums_;       // in force when the link was made
  CommCause cause_;
};

/// Adds the bytes that `plan` sends, and its text. With `all`, also the text of plans that send
/// nothing. `what`: "the refresh of a view".
SHARD_API void add_reshard(PlannedTraffic& moves, const ReshardPlan& plan, std::string_view what, bool all);

/// The stale arguments of a call, and what has to be done to them after the call is allowed and
/// before they are read.
class SHARD_API StaleViews {
 public:
  /// Checks that `storage` can be read. A stale one is kept here: under ViewPolicy::sync to be
  /// refreshed (its sources first), under ViewPolicy::temporary to be separated from its source.
  /// Throws like check_read.
  void add(Storage& storage, ViewPolicy policy);
  bool empty() const { return stale_.empty(); }
  /// Adds the bytes that refreshing them sends, and the text. With `all`, also the text of
  /// refreshes that send nothing.
  void plan(PlannedTraffic& moves, bool all) const;
  void settle(ViewPolicy policy);

 private:
  std::vector<Storage*> stale_;
};

/// Adds what ViewPolicy::sync sends after a write to `target`, back to its sources. Throws if one
/// of them cannot be reached.
SHARD_API void plan_write_back(Storage& target, const char* op, PlannedTraffic& moves, bool all);

/// Refreshes stale views that a recorded call is about to save, or a captured function to read.
/// This is a call of its own: CommPolicy, traces and reports include it.
SHARD_API void refresh_views(Rank& rank, const ProcessMesh& mesh, std::span<Storage* const> storages);

}  // namespace shard::call
