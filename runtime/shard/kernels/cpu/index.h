// What kernels that look up elements by a tensor of indices have in common: reading and checking
// indices, and the positions of what belongs to one index in the order of the arguments.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/data_text.h"

namespace shard::cpu {

/// Element i of a tensor of int32 or int64.
inline int64_t integer_at(const DenseTensor& x, int64_t i) {
  return x.dtype() == DType::int64 ? x.data<int64_t>()[i] : x.data<int32_t>()[i];
}

/// Calls body with the elements of an index, as int32 or int64.
template <class Body>
auto visit_index(const DenseTensor& index, const Body& body) {
  return index.dtype() == DType::int64 ? body(index.data<int64_t>()) : body(index.data<int32_t>());
}

/// The first i below `count` for which wrong(i) is true, or `count`; a call takes about `cost` operations.
template <class Wrong>
int64_t first_where(int64_t count, int64_t cost, const Wrong& wrong) {
  constexpr int64_t kBlock = 1024;
  std::atomic<int64_t> first = count;
  parallel_for((count + kBlock - 1) / kBlock, kBlock * cost, [&](int64_t from, int64_t to) {
    for (int64_t i = from * kBlock; i < std::min({to * kBlock, count, first.load()}); ++i) {
      if (!wrong(i)) continue;
      for (int64_t known = first; i < known && !first.compare_exchange_weak(known, i);) {}
      return;
    }
  });
  return first;
}

/// The first of `count` indices that is below `low` or not below `high`, or `count` where there is none.
template <class I>
int64_t first_outside(const I* index, int64_t count, int64_t low, int64_t high) {
  constexpr int64_t kBlock = 8192;
  std::atomic<int64_t> first = count;
  parallel_for((count + kBlock - 1) / kBlock, kBlock, [&](int64_t from, int64_t to) {
    const int64_t end = std::min(to * kBlock, count);
    for (int64_t begin = from * kBlock; begin < std::min(end, first.load()); begin += kBlock) {
      const int64_t n = std::min(kBlock, end - begin);
      // The sign of one of the differences is set for an index outside. Comparisons of 64 bits are slow where vectors
      // have no instruction for them.
      uint64_t outside = 0;
      for (int64_t i = begin; i < begin + n; ++i) {
        const auto value = static_cast<uint64_t>(static_cast<int64_t>(index[i]));
        outside |= (value - static_cast<uint64_t>(low)) | (static_cast<uint64_t>(high - 1) - value);
      }
      if (outside >> 63 == 0) continue;
      int64_t at = begin;
      while (index[at] >= low && index[at] < high) ++at;
      for (int64_t known = first; at < known && !first.compare_exchange_weak(known, at);) {}
      return;
    }
  });
  return first;
}

/// `index` is input `input` of the op, called `name`.
inline void check_indices(const OpContext& ctx, size_t input, const char* name, const DenseTensor& index, int64_t low,
                          int64_t high) {
  const int64_t at =
      visit_index(index, [&](const auto* values) { return first_outside(values, index.numel(), low, high); });
  if (at == index.numel()) return;
  fail_check(ErrorCode::out_of_range, "{}",
             outside_text(ctx.op, name, ArgumentPlace(ctx, input, index), at, integer_at(index, at), low, high));
}

/// `count` zeros. Throws device, as a tensor would, where there is no memory for them: their number may come from data.
template <class T>
std::vector<T> scratch(int64_t count) {
  try {
    return std::vector<T>(static_cast<size_t>(count));
  } catch (const std::exception&) {  // bad_alloc or length_error
    fail(ErrorCode::device, "out of memory for scratch: {} elements of {} bytes", count, sizeof(T));
  }
}

/// The positions of each row in a list of rows, in consecutive lists: those of row r are from
/// begin[r] to before begin[r + 1].
struct Positions {
  std::vector<int64_t> begin;
  std::vector<int64_t> at;
};

/// For the rows row_of(0), ..., row_of(count - 1), each below `size`; negative ones are left out.
template <class RowOf>
Positions positions_of(int64_t size, int64_t count, const RowOf& row_of) {
  Positions result{scratch<int64_t>(size + 1), scratch<int64_t>(count)};
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t row = row_of(i); row >= 0) ++result.begin[static_cast<size_t>(row) + 1];
  }
  for (size_t i = 1; i < result.begin.size(); ++i) result.begin[i] += result.begin[i - 1];
  std::vector<int64_t> next = result.begin;
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t row = row_of(i); row >= 0) result.at[static_cast<size_t>(next[static_cast<size_t>(row)]++)] = i;
  }
  return result;
}

}  // namespace shard::cpu
