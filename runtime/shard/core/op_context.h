// The context of a kernel call besides tensors and attributes: the op, and the positions of local
// shards in their global tensors.
#pragma once

#include <span>
#include <vector>

#include "shard/core/dense_tensor.h"
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
  /// What counts the tensors that the call makes, which are storage-less then; else null.
  MemoryMeter* meter() const { return launcher == nullptr ? nullptr : &launcher->meter; }
  /// The box of flat input `i`, whose local shard is `tensor`.
  Box input_box(size_t i, const DenseTensor& tensor) const { return local ? local->inputs[i] : whole(tensor); }
  Box output_box(size_t i, const DenseTensor& tensor) const { return local ? local->outputs[i] : whole(tensor); }

 private:
  static Box whole(const DenseTensor& tensor) { return {tensor.dims(), Dims::filled(tensor.dims().rank(), 0)}; }
};

}  // namespace shard
