#include "shard/kernels/cuda/grouping.cuh"

#include <bit>

#include "shard/kernels/cuda/scan.cuh"

namespace shard::cuda {
namespace {

// Rows are sorted digit by digit, from the lowest on, with their sources. Each pass keeps the order of equal digits.
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;  // a thread for each digit
constexpr int kRounds = 8, kTile = kThreads * kRounds;    // elements of a block
static_assert(kDigits == kThreads);

template <class N>
__device__ unsigned digit_of(N row, int shift) {
  return static_cast<unsigned>(row >> shift) & (kDigits - 1);
}

/// The number of a warp's element in round `round` within a tile.
__device__ int element_of(int round) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  return (warp * kRounds + round) * kWarp + lane;
}

/// How many elements before this one in the warp's part of a tile have its digit; `seen` counts them for each digit. All threads of a
/// warp call it, in the order of the rounds.
template <class S>
__device__ S rank_in_warp(unsigned digit, bool is_element, S* seen) {
  unsigned same = __ballot_sync(kAllLanes, is_element);
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool is_set = (digit >> bit & 1u) != 0;
    const unsigned set = __ballot_sync(kAllLanes, is_set);
    same &= is_set ? set : ~set;
  }
  const unsigned below = same & ((1u << (threadIdx.x % kWarp)) - 1u);
  const S before = is_element ? seen[digit] : S{0};
  __syncwarp();
  if (is_element && below == 0) seen[digit] = before + static_cast<S>(__popc(same));
  __syncwarp();
  return before + static_cast<S>(__popc(below));
}

/// The number of elements of each digit in each tile, digit by digit.
template <class N>
__global__ void count_digits(const N* rows, int64_t count, int shift, int64_t tiles, N* counts) {
  SHARD_SHARED(of_digit, unsigned[kDigits]);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    of_digit[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t i = tile * kTile + r * kThreads + static_cast<int>(threadIdx.x);
      if (i < count) atomicAdd(&of_digit[digit_of(rows[i], shift)], 1u);
    }
    __syncthreads();
    counts[threadIdx.x * tiles + tile] = of_digit[threadIdx.x];
  }
}

/// Where the elements of each digit of each tile begin.
template <class N>
struct Begins {
  using State = N;
  static constexpr bool kExclusive = true;
  N* counts;
  bool exclusive = true;

  __device__ State nothing() const { return 0; }
  __device__ State element(int64_t place, int64_t) const { return counts[place]; }
  __device__ State then(State before, State next) const { return before + next; }
  __device__ void write(int64_t place, State state) const { counts[place] = state; }
};

/// Moves the elements of each tile to where those of their digits go. Without `sources`, they are at the places of their numbers.
template <class N>
__global__ void move_by_digit(const N* rows, const N* sources, int64_t count, int shift, int64_t tiles, const N* begins,
                              N* to_rows, N* to_sources) {
  SHARD_SHARED(seen, N[kWarps][kDigits]);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    __syncthreads();  // the last tile has read them
#pragma unroll
    for (int w = 0; w < kWarps; ++w) seen[w][threadIdx.x] = 0;
    __syncthreads();
    N row[kRounds], source[kRounds], rank[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t i = tile * kTile + element_of(r);
      row[r] = i < count ? rows[i] : N{0};
      source[r] = i < count && sources != nullptr ? sources[i] : static_cast<N>(i);
      rank[r] = rank_in_warp(digit_of(row[r], shift), i < count, seen[warp]);
    }
    __syncthreads();
    N next = begins[threadIdx.x * tiles + tile];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const N here = seen[w][threadIdx.x];
      seen[w][threadIdx.x] = next;
      next += here;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (tile * kTile + element_of(r) >= count) continue;
      const N to = seen[warp][digit_of(row[r], shift)] + rank[r];
      to_rows[to] = row[r];
      to_sources[to] = source[r];
    }
  }
}

/// All passes for at most a tile of elements, by one block.
template <class N>
__global__ void sort_tile(N* rows, N* sources, int count, int bits) {
  SHARD_SHARED(kept_rows, N[kTile]);
  SHARD_SHARED(kept_sources, uint16_t[kTile]);
  SHARD_SHARED(seen, unsigned[kWarps][kDigits]);
  SHARD_SHARED(of_warps, unsigned[kWarps]);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    kept_rows[i] = rows[i];
    kept_sources[i] = static_cast<uint16_t>(i);
  }
  for (int shift = 0; shift < bits; shift += kDigitBits) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) seen[w][threadIdx.x] = 0;
    __syncthreads();
    N row[kRounds];
    uint16_t source[kRounds];
    unsigned rank[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int i = element_of(r);
      row[r] = i < count ? kept_rows[i] : N{0};
      source[r] = i < count ? kept_sources[i] : uint16_t{0};
      rank[r] = rank_in_warp(digit_of(row[r], shift), i < count, seen[warp]);
    }
    __syncthreads();
    unsigned all = 0;  // of the digit of this thread
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += seen[w][threadIdx.x];
    const unsigned up_to = warp_scan(all, [](unsigned a, unsigned b) { return a + b; });
    if (lane == kWarp - 1) of_warps[warp] = up_to;
    __syncthreads();
    unsigned next = up_to - all;
    for (int w = 0; w < warp; ++w) next += of_warps[w];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const unsigned here = seen[w][threadIdx.x];
      seen[w][threadIdx.x] = next;
      next += here;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      if (element_of(r) >= count) continue;
      const unsigned to = seen[warp][digit_of(row[r], shift)] + rank[r];
      kept_rows[to] = row[r];
      kept_sources[to] = source[r];
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    rows[i] = kept_rows[i];
    sources[i] = kept_sources[i];
  }
}

/// Sorts `rows`, which are at most `most`, and writes the source of each. Two arrays are used besides. The results are in the first
/// two, or in the other two where this returns true.
template <class N>
bool sort_rows(const OpContext& ctx, int64_t count, int64_t most, N* rows, N* sources, N* other_rows,
               N* other_sources) {
  const int bits = std::max<int>(std::bit_width(static_cast<uint64_t>(most)), 1);
  if (count <= kTile) {
    launch(ctx, sort_tile<N>, 1, kThreads, rows, sources, static_cast<int>(count), bits);
    return false;
  }
  const int64_t tiles = (count + kTile - 1) / kTile;
  const unsigned grid = grid_for(tiles * kThreads, kThreads);
  const Scratch memory(static_cast<size_t>(tiles) * kDigits * sizeof(N));
  N* const counts = static_cast<N*>(memory.data());
  bool is_other = false;
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    launch(ctx, count_digits<N>, grid, kThreads, rows, count, shift, tiles, counts);
    run_scan(ctx, Begins<N>{counts}, Lines{1, tiles * kDigits, 1});
    launch(ctx, move_by_digit<N>, grid, kThreads, rows, shift == 0 ? nullptr : sources, count, shift, tiles, counts,
           other_rows, other_sources);
    std::swap(rows, other_rows);
    std::swap(sources, other_sources);
    is_other = !is_other;
  }
  return is_other;
}

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

void Grouping::group(const OpContext& ctx, bool sorted) {
  is_sorted_ = sorted;
  auto* const long_count = reinterpret_cast<unsigned*>(array(6));
  check(cudaMemsetAsync(long_count, 0, sizeof(unsigned), stream()), "cudaMemsetAsync");
  visit_number(std::max(size_, count_), [&]<class N>(N) {
    const auto numbers = [&](int number) { return reinterpret_cast<N*>(array(number)); };
    if (!sorted) is_other_ = sort_rows(ctx, count_, size_, numbers(0), numbers(1), numbers(2), numbers(3));
    launch(ctx, find_parts<N>, grid_for(count_, 256), 256, numbers(is_other_ ? 2 : 0), count_, static_cast<N>(size_),
           reinterpret_cast<int*>(array(4)), reinterpret_cast<LongGroup*>(array(5)), long_count);
  });
}

Groups Grouping::groups() const {
  const bool is_wide = Grouping::is_wide(size_, count_);
  return {count_,
          Indices(array(is_other_ ? 2 : 0), is_wide),
          Indices(is_sorted_ ? nullptr : array(is_other_ ? 3 : 1), is_wide),
          reinterpret_cast<const int*>(array(4)),
          reinterpret_cast<const LongGroup*>(array(5)),
          reinterpret_cast<const unsigned*>(array(6))};
}

}  // namespace shard::cuda
