// Boxes of arguments that a kernel fetches from the ranks that hold them (OpContext::fetch).
#pragma once

#include "shard/call/plan.h"

namespace shard::call {

/// Advances `at` to the next coordinate along `axes`, which begin at 0; returns false after the last one.
inline bool next_place(const ProcessMesh& mesh, const AxisList& axes, Coordinate& at) {
  for (int i = axes.size(); i-- > 0;) {
    int& place = at[static_cast<size_t>(axes[i])];
    if (++place < mesh.size(axes[i])) return true;
    place = 0;
  }
  return false;
}

/// Which boxes of flat input `i` the ranks hold, and which ones they need. The plan and `needed` must outlive it.
class SHARD_API FetchedBoxes {
 public:
  FetchedBoxes(const CallPlan& plan, size_t i, const NeededBox& needed);

  /// The axes along which ranks hold other parts of the input, and send them.
  const AxisList& axes() const { return axes_; }
  ShardBox held(const Coordinate& at) const;
  ShardBox needed(const Coordinate& at) const;
  /// The elements that the rank at `at` receives from others.
  int64_t received(const Coordinate& at) const;

 private:
  const CallPlan& plan_;
  size_t input_;
  const NeededBox& needed_;
  AxisList axes_;
};

/// The box that this rank needs of flat input `i`, whose local shard is `shard`. All ranks of the mesh call it.
SHARD_API Fetched fetch_box(Rank& rank, const CallPlan& plan, size_t i, const DenseTensor& shard,
                            const NeededBox& needed, CommCause cause);

}  // namespace shard::call
