// Which elements move in a step that does not reduce: who needs what, and from whom. Counting and executing both ask here.
#pragma once

#include <span>
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

/// The step's global shape with the dims of each group as one, and how both layouts split them: then pieces on both sides are boxes.
/// That is so unless a group is sharded elsewhere than at its first dim (longer than 1).
struct BoxSpace {
  Dims dims;
  Layout before;
  Layout after;
};
/// Nothing for a relayout whose pieces are no boxes in any common shape.
std::optional<BoxSpace> box_space(const ReshardStep& step);

/// Bytes that `process` sends in one step; the sum over all processes is step.bytes.
int64_t bytes_sent_by(const ReshardStep& step, DType dtype, int process);
/// Sets bytes and bytes_max.
void count_bytes(ReshardStep& step, DType dtype);

/// A box that one process gives to another; `from_begin` is its place in the sender's piece, `to_begin` in the receiver's.
struct BoxMove {
  int process;  // the other one
  Dims from_begin;
  Dims to_begin;
  Dims extent;
};
/// What `process` gives and gets in one moving step, boxes for itself included, in an order that both sides have. `from_dims` and
/// `to_dims` give the shape of any process's piece before and after.
std::vector<BoxMove> boxes_sent_by(const BoxSpace& space, int process);
std::vector<BoxMove> boxes_received_by(const BoxSpace& space, int process);

/// True when `receiver` takes what it needs of the piece at `sender` from there, and not from another holder of that piece (one mesh).
bool sends_to(const Layout& from, const Coordinate& sender, const Coordinate& receiver);

}  // namespace shard
