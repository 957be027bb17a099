// The context of a kernel call besides tensors and attributes: the op, and the positions of local
// shards in their global tensors.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/core/export.h"
#include "shard/core/launcher.h"
#include "shard/core/random.h"
#include "shard/core/reduce_type.h"

namespace shard {

/// The position of a local shard in its global tensor: the global shape and the shard's first index
/// in each dim.
struct Box {
  Dims global;
  Dims begin;
};

/// A tensor of each rank, one after the other.
struct Gathered {
  DenseTensor all;   // [ranks, elements]
  int64_t mine = 0;  // the number of this rank
};

/// A part of a dim: its first index and its length, both in elements.
struct Range {
  int64_t begin = 0;
  int64_t size = 0;
};

/// A part of a tensor as a box: first index and length per dim.
struct ShardBox {
  Dims begin;
  Dims dims;
};

/// The local shards of a call on one rank. Flat; absent arguments have empty boxes.
struct CallBoxes {
  std::span<const ShardBox> inputs;
  std::span<const ShardBox> outputs;
};

/// The box of an argument that the kernel needs on a rank with these shards. It may be larger than the shard of the
/// argument, or lie beside it. It is computed for other ranks too, and so from nothing that differs between ranks.
using NeededBox = std::function<ShardBox(const CallBoxes&)>;

/// A box of an argument, and its position in the global tensor.
struct Fetched {
  DenseTensor tensor;
  Dims begin;
};

/// Combines a value over the ranks that hold the other shards of an argument. Implemented above the
/// communicators.
class SHARD_API AxisReducer {
 public:
  virtual ~AxisReducer() = default;
  /// Replaces `value` by its reduction over the mesh axes that the rule asked for. The result is
  /// bit-identical on all their ranks.
  virtual void all_reduce(DenseTensor& value, ReduceType type) = 0;
  /// The values of all these ranks, which have one shape. Where the axes shard one dim, ranks are in the order of its
  /// shards.
  virtual Gathered all_gather(const DenseTensor& value) = 0;
  /// The box that this rank needs of flat input `i`, whose local shard is `shard`: what other ranks hold of it is sent.
  virtual Fetched fetch(size_t /*i*/, const DenseTensor& /*shard*/, const NeededBox& /*needed*/) {
    fail(ErrorCode::internal, "this reducer cannot fetch elements of other ranks");
  }
};

/// The part of a distributed call that one rank computes.
struct LocalCall {
  std::span<const Box> inputs;  // flat: elements of a list are consecutive; absent optionals have an empty box
  std::span<const Box> outputs;
  AxisReducer* reducer = nullptr;  // null where the rule asked for no axes
  RandomKey random;                // for ops that draw random numbers
  bool replace_targets = false;    // in-place results go to new buffers: their global shape, dtype or layout changes
};

/// The context of one call of an op. `local` is null for a call on plain tensors, whose boxes are
/// the whole tensors.
struct OpContext {
  const char* op;
  const LocalCall* local = nullptr;
  Launcher* launcher = nullptr;  // takes kernels and copies; null: they run at once, as kernels see it

  /// What combines values over ranks that hold other shards of an argument, or null where no kernel
  /// of the call has to.
  AxisReducer* reducer() const { return local == nullptr ? nullptr : local->reducer; }
  /// Replaces `value` by its reduction over the mesh axes that the rule asked for, if any.
  void all_reduce(DenseTensor& value, ReduceType type) const {
    if (AxisReducer* const combining = reducer()) combining->all_reduce(value, type);
  }
  /// The box that this rank needs of flat input `i`, where mesh axes shard a dim along which the rule allows that; else
  /// the local shard itself, which has all of it. All ranks of the call fetch the same inputs in the same order, whatever
  /// they need.
  Fetched fetch(size_t i, const DenseTensor& shard, const NeededBox& needed) const {
    if (AxisReducer* const fetching = reducer()) return fetching->fetch(i, shard, needed);
    return {shard, input_box(i, shard).begin};
  }
  /// What counts the tensors that the call makes, which are storage-less then; else null.
  MemoryMeter* meter() const { return launcher == nullptr ? nullptr : &launcher->meter; }
  /// The box of flat input `i`, whose local shard is `tensor`.
  Box input_box(size_t i, const DenseTensor& tensor) const { return local ? local->inputs[i] : whole(tensor); }
  Box output_box(size_t i, const DenseTensor& tensor) const { return local ? local->outputs[i] : whole(tensor); }

 private:
  static Box whole(const DenseTensor& tensor) { return {tensor.dims(), Dims::filled(tensor.dims().rank(), 0)}; }
};

}  // namespace shard
