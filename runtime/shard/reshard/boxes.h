// Computes which elements a step without a reduction sends: which process needs what, and from
// whom. Both counting and execution use it.
#pragma once

#include <optional>
#include <vector>

#include "shard/reshard/plan.h"

namespace shard {

/// Half-open ranges of row-major element indices that a shard covers, in order.
struct IndexRun {
  int64_t begin;
  int64_t end;
};
std::vector<IndexRun> index_runs(const Dims& global, const ShardBox& shard);
/// The part of `a` that is also in `b`.
std::vector<IndexRun> intersect(const std::vector<IndexRun>& a, const std::vector<IndexRun>& b);

/// Dims [in_begin, in_end) hold the same elements, in the same order, as dims [out_begin, out_end).
struct DimGroup {
  int in_begin, in_end, out_begin, out_end;
};
/// The finest grouping of the dims of two shapes with equal numbers of elements (which are not zero).
std::vector<DimGroup> group_dims(const Dims& in, const Dims& out);

/// A global shape in which the shards before and after a step are boxes: the step's own shape, or
/// for a relayout the shape in which each group of dims is one dim. There a dim is split in units
/// of `grain` elements.
struct BoxSpace {
  Dims dims;
  Dims before_grain;
  Dims after_grain;
  Layout before;
  Layout after;
};
/// Nothing for a relayout that shards a dim of a group other than the first (longer than 1), on
/// either side.
std::optional<BoxSpace> box_space(const ReshardStep& step);

/// Bytes that `process` sends in one step; the sum over all processes is step.bytes.
int64_t bytes_sent_by(const ReshardStep& step, DType dtype, int process);
/// Sets bytes and bytes_max.
void count_bytes(ReshardStep& step, DType dtype);

/// A box that one process sends to another; `from_begin` is its position in the sender's shard,
/// `to_begin` in the receiver's.
struct BoxMove {
  int process;  // the other process, and its index in its mesh
  int index;
  Dims from_begin;
  Dims to_begin;
  Dims extent;
};
/// What `process` sends and receives in one exchange step, including boxes for itself; at most one
/// box from one process to another.
std::vector<BoxMove> boxes_sent_by(const BoxSpace& space, int process);
std::vector<BoxMove> boxes_received_by(const BoxSpace& space, int process);
/// The shard at a coordinate of layout's mesh (before or after), in the box space.
ShardBox box_of(const BoxSpace& space, const Layout& layout, const Dims& grain, const Coordinate& at);

/// True when `receiver` gets what it needs of the shard at `sender` from there, and not from
/// another holder of that shard (on one mesh).
bool sends_to(const Layout& from, const Coordinate& sender, const Coordinate& receiver);

}  // namespace shard
