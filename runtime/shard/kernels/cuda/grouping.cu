#include "shard/kernels/cuda/grouping.cuh"

#include <algorithm>

namespace shard::cuda {
namespace {

/// The first place from `begin` to `end` whose row is not below `row`, or above it if `above`; `end` where there is none.
template <class N>
__device__ int64_t first_place(const N* rows, int64_t begin, int64_t end, N row, bool above) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (rows[middle] < row || (above && rows[middle] == row)) begin = middle + 1;
    else end = middle;
  }
  return begin;
}

/// Finds the parts of groups, and the groups of several parts. These are listed in any order: nothing depends on it.
template <class N>
__global__ void find_parts(const N* rows, int64_t count, N none, int* parts, LongGroup* long_groups,
                           unsigned* long_count) {
  for (int64_t place = grid_first<int64_t>(); place < count; place += grid_step<int64_t>()) {
    const N row = rows[place];
    const bool is_first = place == 0 || rows[place - 1] != row;
    bool begins = is_first;
    if (row != none && !is_first && place >= kPart && rows[place - kPart] == row)
      begins = (place - first_place(rows, 0, place - kPart, row, false)) % kPart == 0;
    if (row == none || !begins) {
      parts[place] = 0;
      continue;
    }
    const int64_t end = min(place + kPart, count);
    const int64_t next = rows[end - 1] == row ? end : first_place(rows, place + 1, end, row, true);
    const bool is_last = next == count || rows[next] != row;
    parts[place] = static_cast<int>(next - place) | (is_first ? Groups::kFirst : 0) | (is_last ? Groups::kLast : 0);
    if (is_first && !is_last) {
      const int64_t all = first_place(rows, next, count, row, true) - place;
      long_groups[atomicAdd(long_count, 1u)] = {place, all};
    }
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

size_t Grouping::bytes(int64_t size, int64_t count) {
  const int64_t numbers = aligned(count * (is_wide(size, count) ? 8 : 4));
  const int64_t groups = (count / (kPart + 1) + 1) * static_cast<int64_t>(sizeof(LongGroup));
  return static_cast<size_t>(4 * numbers + aligned(count * 4) + groups + 16);
}

char* Grouping::array(int number) const {
  const int64_t numbers = aligned(count_ * (is_wide(size_, count_) ? 8 : 4));
  const int64_t groups = (count_ / (kPart + 1) + 1) * static_cast<int64_t>(sizeof(LongGroup));
  int64_t offset = std::min(number, 4) * numbers;
  if (number > 4) offset += aligned(count_ * 4);
  if (number > 5) offset += groups;
  return static_cast<char*>(memory_.data()) + offset;
}

void Grouping::group(const OpContext& ctx) {
  auto* const long_count = reinterpret_cast<unsigned*>(array(6));
  check(cudaMemsetAsync(long_count, 0, sizeof(unsigned), stream()), "cudaMemsetAsync");
  if (!is_sorted_) radix_sort(pairs_, key_bits(static_cast<uint64_t>(size_)));
  visit_number(std::max(size_, count_), [&]<class N>(N) {
    launch(ctx, find_parts<N>, grid_for(count_, 256), 256, static_cast<const N*>(pairs_.keys), count_,
           static_cast<N>(size_), reinterpret_cast<int*>(array(4)), reinterpret_cast<LongGroup*>(array(5)), long_count);
  });
}

Groups Grouping::groups() const {
  const bool is_wide = Grouping::is_wide(size_, count_);
  return {count_,
          Indices(pairs_.keys, is_wide),
          Indices(is_sorted_ ? nullptr : pairs_.places, is_wide),
          reinterpret_cast<const int*>(array(4)),
          reinterpret_cast<const LongGroup*>(array(5)),
          reinterpret_cast<const unsigned*>(array(6))};
}

}  // namespace shard::cuda
