// How a copy is kept in step with the tensor that it was made of: the moves between the two, what they send, and when
// they are due.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "core/dense_tensor.h"
#include "dist/world.h"
#include "reshard/plan.h"

namespace shard::call {

struct PlannedMoves;

/// Plans that are executed one after the other.
using ReshardPlans = std::vector<std::shared_ptr<const ReshardPlan>>;

/// One of the two tensors that a link is between: this rank's shard of it, its global meta and its layout.
struct LinkEnd {
  DenseTensor shard;
  Meta global;
  const DistSpec* spec;
};

/// The moves from one tensor to another that has the same elements, in row-major order.
ReshardPlans plan_between(const Meta& from_meta, const DistSpec* from, const Meta& to_meta, const DistSpec* to,
                          SumPolicy sums);

/// The moves between a source and a copy of it in another layout or shape. The copy's Detachment owns it, so it does
/// not own the copy.
///
/// A copy of a copy is kept in step with the source of that, by moves between these two. So no buffer between them is
/// kept. That is so from the start, not once a tensor between them is gone: tensors may go at different times on
/// different ranks, and what is sent must not depend on it.
class ViewLink {
 public:
  /// One of the two plans may be null: it is made when it is needed.
  ViewLink(Rank& rank, DenseTensor source, const DenseTensor& copy, std::shared_ptr<const ReshardPlan> forth,
           std::shared_ptr<const ReshardPlan> back, CommCause cause);

  /// Moves the bytes of the source into the copy, or back.
  void refresh();
  void write_back();
  const ReshardPlans& forth();
  const ReshardPlans& back();
  /// Makes `copy` a copy of the source as it was at `version`, with the ways between the two that lose no values.
  /// Without an `argument`, `op` gave the source a new buffer and left the old one to the copy.
  static void attach(const std::shared_ptr<ViewLink>& link, const Ref<Storage>& copy, uint64_t version, const char* op,
                     std::string_view argument, std::string from, std::string to);
  /// Of a detached storage; null where there is no way between the two.
  static ViewLink* of(const Storage& copy);
  /// What a copy of `tensor` is kept in step with: its source, where it is a copy that can be moved both ways, else itself.
  static LinkEnd source_of(LinkEnd tensor);

 private:
  DenseTensor copy() const;
  /// From now on the copy is one of `source`, which has the same value as the source now. Returns the source before.
  DenseTensor follow(const LinkEnd& source);

  Rank& rank_;
  LinkEnd source_;
  Storage* copy_;
  Meta copy_meta_;  // of this rank's shard
  uint32_t copy_symbol_;
  Meta copy_global_;
  const DistSpec* copy_spec_;
  ReshardPlans forth_, back_;  // empty until they are needed
  const SumPolicy sums_;       // in force when the link was made
  CommCause cause_;
};

/// Adds what `plan` sends, as text too; with `all` also where nothing is sent. `what`: "the refresh of a view".
void add_move(PlannedMoves& moves, const ReshardPlan& plan, std::string_view what, bool all);

/// The stale arguments of a call: what has to be done to them, once the call is allowed, before they are read.
class StaleViews {
 public:
  /// Checks that `storage` can be read. One that is stale waits in here under ViewPolicy::sync (to be refreshed, its
  /// sources first) and temporary (to part from its source). Throws as check_read.
  void add(Storage& storage, ViewPolicy policy);
  bool empty() const { return stale_.empty(); }
  /// What refreshing them sends, as text too; with `all` also where nothing is sent.
  void plan(PlannedMoves& moves, bool all) const;
  void settle(ViewPolicy policy);

 private:
  std::vector<Storage*> stale_;
};

/// What ViewPolicy::sync sends after a write to `target`, back to its sources. Throws where one of them cannot be
/// reached.
void plan_write_back(Storage& target, const char* op, PlannedMoves& moves, bool all);

/// Refreshes what a recorded call is about to save, or a captured function to read, as a call of its own: CommPolicy, traces and reports see it.
void refresh_views(Rank& rank, const ProcessMesh& mesh, std::span<Storage* const> storages);

}  // namespace shard::call
