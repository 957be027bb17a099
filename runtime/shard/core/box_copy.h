// Copies a box of elements between two row-major host buffers of different shapes. Reshards
// transfer local shards with it, without packing.
#pragma once

#include "shard/core/box_view.h"

namespace shard {

/// Copies a box of `extent` elements of `element` bytes each from `from` to `to`. The buffers do not overlap.
void copy_box(const BoxView& to, const BoxView& from, const Dims& extent, size_t element);

/// True when a box of `extent` in a buffer of shape `dims` is one run of memory.
bool is_contiguous(const Dims& dims, const Dims& extent);

/// The position of an element in a row-major buffer of shape `dims`, in elements.
int64_t offset_of(const Dims& dims, const Dims& index);

}  // namespace shard
