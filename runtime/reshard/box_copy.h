// Copies a box of elements between two row-major host buffers of different shapes: how pieces are packed and unpacked.
#pragma once

#include "core/dims.h"

namespace shard {

/// A row-major buffer of shape `dims`, and a position in it.
struct BoxView {
  char* data;
  const Dims& dims;
  Dims begin;
};

/// Copies a box of `extent` elements of `element` bytes each from `from` to `to`.
void copy_box(const BoxView& to, const BoxView& from, const Dims& extent, size_t element);

}  // namespace shard
