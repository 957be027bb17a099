// Texts of errors about values in arguments, which the kernels of all backends throw alike.
#pragma once

#include <fmt/format.h>

#include <string>

#include "shard/core/op_context.h"

namespace shard {

/// Where the elements of an argument's local shard are in the whole tensor. Trivially copyable.
struct ArgumentPlace {
  Dims local, global, begin;
  DType dtype = DType::float32;

  ArgumentPlace(const OpContext& ctx, size_t input, const DenseTensor& shard)
      : local(shard.dims()), dtype(shard.dtype()) {
    const Box box = ctx.input_box(input, shard);
    global = box.global;
    begin = box.begin;
  }

  /// "3" or "[3, 1]": the global index of element `i` of the shard.
  std::string index_text(int64_t i) const {
    Dims index = begin;
    for (int d = local.rank() - 1; d >= 0; --d) {
      index[d] += i % local[d];
      i /= local[d];
    }
    return index.rank() > 1 ? to_string(index) : std::to_string(index.rank() == 1 ? index[0] : 0);
  }
  /// "i32[4, 2]": dtype and global shape.
  std::string global_text() const { return to_string(Meta{global, dtype}); }
};

/// An index `value` of argument `name` at element `i`, which is below `low` or not below `high`.
inline std::string outside_text(const char* op, const std::string& name, const ArgumentPlace& place, int64_t i,
                                int64_t value, int64_t low, int64_t high) {
  return fmt::format("[{}] {} is {} at element {}, but must be from {} to {} ({} is {})", op, name, value,
                     place.index_text(i), low, high - 1, name, place.global_text());
}

/// An index `value` at element `i` of the argument index [.., k] of an op that selects slices of x, whose shape is `x`.
inline std::string row_outside_text(const char* op, const ArgumentPlace& index, const Dims& x, int64_t k, int64_t i,
                                    int64_t value) {
  const int64_t size = x[static_cast<int>(i % k)];
  return fmt::format("[{}] index is {} at element {}, but must be from {} to {} for dim {} of x, which is {}", op,
                     value, index.index_text(i), -size, size - 1, i % k, to_string(x));
}

/// A label `value` at element `i` of a cross entropy that is none of `classes` and not ignore_index.
inline std::string class_outside_text(const char* op, const ArgumentPlace& label, int64_t i, int64_t value,
                                      int64_t classes, int64_t ignore_index) {
  return fmt::format(
      "[{}] label has the class {} at element {}, but there are {} classes and ignore_index is {} (label is {})", op,
      value, label.index_text(i), classes, ignore_index, label.global_text());
}

/// The same in nll_loss.
inline std::string label_outside_text(const char* op, const ArgumentPlace& label, int64_t i, int64_t value,
                                      int64_t classes, int64_t ignore_index) {
  return fmt::format("[{}] label is {} at element {}, but must be from 0 to {}, or ignore_index, {} (label is {})", op,
                     value, label.index_text(i), classes - 1, ignore_index, label.global_text());
}

/// A position id `value` at element `i` of rotary embeddings whose tables have `positions` positions.
inline std::string position_outside_text(const char* op, const ArgumentPlace& ids, int64_t i, int64_t value,
                                         int64_t positions) {
  return fmt::format("[{}] position_ids has {}, but sin and cos have the positions 0 to {} (element {} of {})", op,
                     value, positions - 1, ids.index_text(i), ids.global_text());
}

}  // namespace shard
