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

/// The offset `value` of packed sequences at element `i` of argument `name`.
inline std::string offset_text(const char* op, const char* name, int64_t i, int64_t value, const char* rows_name,
                               int64_t rows, const char* longest_name, int64_t longest) {
  return fmt::format(
      "[{}] {} is {} at element {}, but must rise from 0 to {}, the rows of {}, in steps of at most {} = {}", op, name,
      value, i, rows, rows_name, longest_name, longest);
}

/// The length `value` of a sequence at an element of seqlen_k, where there are `most` keys.
inline std::string length_text(const char* op, const ArgumentPlace& place, int64_t i, int64_t value, int64_t most) {
  return fmt::format("[{}] seqlen_k is {} at element {}, but must be from 0 to {}, the keys there", op, value,
                     place.index_text(i), most);
}

/// What is wrong with matrix `i` of x, a tensor of matrices.
inline std::string matrix_text(const char* op, const char* problem, const ArgumentPlace& x, int64_t i) {
  Dims at;
  for (int d = x.local.rank() - 3; d >= 0; i /= x.local[d--]) at.insert(0, x.begin[d] + i % x.local[d]);
  return fmt::format("[{}] {} (x is {}{})", op, problem, x.global_text(),
                     at.rank() > 0 ? ", the matrix is at " + to_string(at) : "");
}

/// An index `value` at element `i` of the argument index [.., k] of an op that selects slices of x, whose shape is `x`.
inline std::string row_outside_text(const char* op, const ArgumentPlace& index, const Dims& x, int64_t k, int64_t i,
                                    int64_t value) {
  const int64_t size = x[static_cast<int>(i % k)];
  return fmt::format("[{}] index is {} at element {}, but must be from {} to {} for dim {} of x, which is {}", op,
                     value, index.index_text(i), -size, size - 1, i % k, to_string(x));
}

/// Element `i` of y, which is 0 where integers are divided by it.
inline std::string zero_divisor_text(const char* op, const ArgumentPlace& y, int64_t i) {
  return fmt::format("[{}] y is {} and its element {} is 0, and integers cannot be divided by 0; cast to a float dtype",
                     op, y.global_text(), y.index_text(i));
}

/// A `value` at element `i` of the argument indices that is no place in an image.
inline std::string image_place_text(const char* op, const ArgumentPlace& indices, int64_t i, int64_t value,
                                    int64_t height, int64_t width) {
  return fmt::format(
      "[{}] indices is {} at element {}, but must be from 0 to {}, a place in an image of {} x {} elements", op, value,
      indices.index_text(i), height * width - 1, height, width);
}

/// Element `i` of the argument segment_ids, which is below the one before it.
inline std::string falling_text(const char* op, const ArgumentPlace& ids, int64_t i, int64_t value, int64_t before) {
  return fmt::format("[{}] segment_ids is {} at element {}, after {}, but must be in rising order; sort the rows by it",
                     op, value, ids.index_text(i), before);
}

/// An element `i` of a mask of max_pool2d_with_index that is not in the window of its output; an image has `places`.
inline std::string place_text(const char* op, const ArgumentPlace& mask, int64_t i, int64_t value, int64_t places) {
  return fmt::format(
      "[{}] mask is {} at element {}, but must be a place in the window of that element, and so from 0 to {} (mask is "
      "{})",
      op, value, mask.index_text(i), places - 1, mask.global_text());
}

/// A number of boxes of image `n` that is negative, or more than the `left` of `count` boxes.
inline std::string boxes_left_text(const char* op, int64_t n, int64_t value, int64_t left, int64_t count) {
  return fmt::format("[{}] boxes_num is {} for image {}, but {} of {} boxes are left", op, value, n, left, count);
}

/// Numbers of boxes of all images that add up to less than `count`.
inline std::string boxes_sum_text(const char* op, int64_t sum, int64_t count) {
  return fmt::format("[{}] boxes_num adds up to {}, but there are {} boxes", op, sum, count);
}

/// A coordinate of boxes that is too large, at element `i`.
inline std::string box_text(const char* op, const ArgumentPlace& boxes, int64_t i, double value) {
  return fmt::format("[{}] boxes is {} at element {}, but must be finite, and below 1e15 with spatial_scale too", op,
                     value, boxes.index_text(i));
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
