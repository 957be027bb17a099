// Which elements move in a step that does not reduce: who needs what, and from whom. Counting and executing both ask here.
#pragma once

#include <optional>
#include <vector>

#include "reshard/plan.h"

namespace shard {

/// Half-open ranges of row-major element indices that a piece covers, in order.
struct IndexRun {
  int64_t begin;
  int64_t end;
};
std::vector<IndexRun> index_runs(const Dims& global, const Piece& piece);
/// The part of `a` that is also in `b`.
std::vector<IndexRun> intersect(const std::vector<IndexRun>& a, const std::vector<IndexRun>& b);

/// Dims [in_begin, in_end) hold the same elements, in the same order, as dims [out_begin, out_end).
struct DimGroup {
  int in_begin, in_end, out_begin, out_end;
};
/// The finest grouping of the dims of two shapes with equal numbers of elements (which are not zero).
std::vector<DimGroup> group_dims(const Dims& in, const Dims& out);

/// A global shape in which the pieces before and after a step are boxes: the step's own, or for a relayout the one that has the dims
/// of each group as one. There a dim is cut in units of `grain` elements.
struct BoxSpace {
  Dims dims;
  Dims before_grain;
  Dims after_grain;
  Layout before;
  Layout after;
};
/// Nothing for a relayout that shards another dim of a group than the first (longer than 1), on either side.
std::optional<BoxSpace> box_space(const ReshardStep& step);

/// Bytes that `process` sends in one step; the sum over all processes is step.bytes.
int64_t bytes_sent_by(const ReshardStep& step, DType dtype, int process);
/// Sets bytes and bytes_max.
void count_bytes(ReshardStep& step, DType dtype);

/// A box that one process gives to another; `from_begin` is its place in the sender's piece, `to_begin` in the receiver's.
struct BoxMove {
  int process;  // the other one, and its index in its mesh
  int index;
  Dims from_begin;
  Dims to_begin;
  Dims extent;
};
/// What `process` gives and gets in one moving step, boxes for itself included; at most one box from one process to another.
std::vector<BoxMove> boxes_sent_by(const BoxSpace& space, int process);
std::vector<BoxMove> boxes_received_by(const BoxSpace& space, int process);
/// The piece at a coordinate of layout's mesh (before or after), in the box space.
Piece piece_of(const BoxSpace& space, const Layout& layout, const Dims& grain, const Coordinate& at);

/// True when `receiver` takes what it needs of the piece at `sender` from there, and not from another holder of that piece (one mesh).
bool sends_to(const Layout& from, const Coordinate& sender, const Coordinate& receiver);

}  // namespace shard
