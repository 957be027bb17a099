// Sums of rows that an index selects.
#pragma once

#include <cstdint>

#include "shard/core/dtype.h"

namespace shard::cpu {

/// Writes `first`, where it is not null, plus the sum of the `n` rows of `from` that `rows` selects, in
/// their order; rows have `width` elements of `dtype`. n is at least 1 where `first` is null. `to` may be `first`.
void add_rows(DType dtype, const void* first, const void* from, const int64_t* rows, int64_t n, int64_t width,
              void* to);

template <class T>
void add_rows(const T* first, const T* from, const int64_t* rows, int64_t n, int64_t width, T* to) {
  add_rows(dtype_of<T>, first, from, rows, n, width, to);
}

}  // namespace shard::cpu
