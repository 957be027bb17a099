// Running values along one dim: scans of lines by any associative function. The order of combinations depends only on shape and device.
#pragma once

#include <algorithm>

#include "shard/core/op_context.h"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

/// The value of the lane `distance` below, or this lane's own where there is none; T may have several words.
template <class T>
__device__ T shuffle_up(T value, unsigned distance) {
  constexpr size_t kWords = (sizeof(T) + sizeof(unsigned) - 1) / sizeof(unsigned);
  unsigned words[kWords] = {};
  memcpy(words, static_cast<const void*>(&value), sizeof(T));
#pragma unroll
  for (unsigned& word : words) word = __shfl_up_sync(kAllLanes, word, distance);
  memcpy(static_cast<void*>(&value), words, sizeof(T));
  return value;
}
/// The value of lane `lane`.
template <class T>
__device__ T shuffle_from(T value, int lane) {
  constexpr size_t kWords = (sizeof(T) + sizeof(unsigned) - 1) / sizeof(unsigned);
  unsigned words[kWords] = {};
  memcpy(words, static_cast<const void*>(&value), sizeof(T));
#pragma unroll
  for (unsigned& word : words) word = __shfl_sync(kAllLanes, word, lane);
  memcpy(static_cast<void*>(&value), words, sizeof(T));
  return value;
}

/// The values of all lanes up to and with this one, combined in their order.
template <class T, class F>
__device__ T warp_scan(T value, F then) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T below = shuffle_up(value, static_cast<unsigned>(distance));
    if (lane >= distance) value = then(below, value);
  }
  return value;
}

/// Writes all bytes of a state, also those between its members, which are read with them.
template <class State>
__device__ void put_state(State* to, const State& state) {
  if constexpr (sizeof(State) % sizeof(unsigned) == 0) {
    constexpr size_t kWords = sizeof(State) / sizeof(unsigned);
    unsigned words[kWords];
    memcpy(words, static_cast<const void*>(&state), sizeof(State));
#pragma unroll
    for (size_t w = 0; w < kWords; ++w) reinterpret_cast<unsigned*>(to)[w] = words[w];
  } else {
    *to = state;
  }
}

/// A tensor as lines along a dim: [outer, size, inner], each line in `parts` parts of `chunk` elements, the last of which may be
/// shorter. Elements of a line are counted from its end where `reverse`.
struct Lines {
  int64_t outer, size, inner;
  bool reverse = false;
  int64_t parts = 1, chunk = 0;

  __host__ __device__ int64_t count() const { return outer * inner; }
  /// Where element `k` of line `line` is.
  __device__ int64_t place(int64_t line, int64_t k) const {
    const int64_t at = reverse ? size - 1 - k : k;
    return inner == 1 ? line * size + at : (line / inner * size + at) * inner + line % inner;
  }
};

/// The lines of a tensor along a dim; a 0-d tensor is one line of one element.
inline Lines lines_along(const OpContext& ctx, const Dims& dims, int64_t axis) {
  const int along = normalize_axis(ctx.op, "axis", axis, dims.rank());
  if (dims.rank() == 0) return {1, 1, 1};
  return {dims.numel(0, along), dims[along], dims.numel(along + 1, dims.rank())};
}

// A scan is a struct with a type State, and functions
//   State nothing() const;                            the state before the first element
//   State element(int64_t place, int64_t k) const;    that of one element, the k-th of its line
//   State then(State before, State next) const;       associative
//   void write(int64_t place, State state) const;     writes the result of a place
// and `static constexpr bool kExclusive`: whether it has a member `exclusive`, for results without the element itself.

template <class Scan>
__device__ bool excludes(const Scan& scan) {
  if constexpr (Scan::kExclusive) return scan.exclusive;
  else return false;
}

/// The states of whole parts, or of the elements of lines, of a block of `Threads` threads for each part of a line. `before` has the
/// states before each part, or is null where lines have one part.
template <int Threads, bool writes, class Scan>
__global__ void scan_rows(Scan scan, Lines lines, const typename Scan::State* before, typename Scan::State* totals) {
  using State = typename Scan::State;
  constexpr int kRows = 4, kWarps = Threads / kWarp, kTile = Threads * kRows;
  SHARD_SHARED(of_warps, State[kWarps]);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto then = [&](const State& a, const State& b) { return scan.then(a, b); };
  for (int64_t part = blockIdx.x; part < lines.count() * lines.parts; part += gridDim.x) {
    const int64_t line = part / lines.parts, first = part % lines.parts * lines.chunk;
    const int64_t last = min(first + lines.chunk, lines.size);
    State carry = before == nullptr ? scan.nothing() : before[part];
    for (int64_t begin = first; begin < last; begin += kTile) {
      const int64_t mine = begin + warp * (kRows * kWarp) + lane;
      State states[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t k = mine + r * kWarp;
        states[r] = k < last ? scan.element(lines.place(line, k), k) : scan.nothing();
      }
      State all = scan.nothing();  // of the rows of this warp
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        states[r] = then(all, warp_scan(states[r], then));
        all = shuffle_from(states[r], kWarp - 1);
      }
      if constexpr (kWarps > 1) {
        __syncthreads();  // the last tile has read them
        if (lane == 0) put_state(of_warps + warp, all);
        __syncthreads();
      }
      State start = carry;  // what is before this warp
      if constexpr (kWarps > 1) {
        for (int w = 0; w < kWarps; ++w) {
          if (w == warp) start = carry;
          carry = then(carry, of_warps[w]);
        }
      } else {
        carry = then(carry, all);
      }
      if constexpr (!writes) continue;
      State preceding = start;  // the last state before a row
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t k = mine + r * kWarp;
        const State state = then(start, states[r]);
        State result = state;
        if constexpr (Scan::kExclusive) {
          const State below = shuffle_up(state, 1);
          if (excludes(scan)) result = lane == 0 ? preceding : below;
          preceding = shuffle_from(state, kWarp - 1);
        }
        if (k < last) scan.write(lines.place(line, k), result);
      }
    }
    if constexpr (!writes) {
      if (threadIdx.x == 0) put_state(totals + part, carry);
    }
  }
}

/// The same by one thread for each part of a line. Neighbouring threads have neighbouring lines.
template <bool writes, class Scan>
__global__ void scan_columns(Scan scan, Lines lines, const typename Scan::State* before, typename Scan::State* totals) {
  using State = typename Scan::State;
  const int64_t count = lines.count(), step = gridDim.x * int64_t{blockDim.x};
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count * lines.parts; i += step) {
    const int64_t line = i % count, part = i / count, first = part * lines.chunk;
    const int64_t last = min(first + lines.chunk, lines.size);
    State state = before == nullptr ? scan.nothing() : before[line * lines.parts + part];
    for (int64_t k = first; k < last; ++k) {
      const int64_t place = lines.place(line, k);
      const State next = scan.then(state, scan.element(place, k));
      if constexpr (writes) scan.write(place, excludes(scan) ? state : next);
      state = next;
    }
    if constexpr (!writes) put_state(totals + line * lines.parts + part, state);
  }
}

/// The states before each part, from the totals of the parts.
template <class Scan>
struct OverParts {
  using State = typename Scan::State;
  static constexpr bool kExclusive = true;
  Scan scan;
  State* totals;
  bool exclusive = true;

  __device__ State nothing() const { return scan.nothing(); }
  __device__ State element(int64_t place, int64_t) const { return totals[place]; }
  __device__ State then(const State& before, const State& next) const { return scan.then(before, next); }
  __device__ void write(int64_t place, const State& state) const { put_state(totals + place, state); }
};

inline constexpr int kScanThreads = 256;

template <bool writes, class Scan>
void launch_scan(const OpContext& ctx, const Scan& scan, const Lines& lines, const typename Scan::State* before,
                 typename Scan::State* totals) {
  const int64_t parts = lines.count() * lines.parts;
  if (lines.inner > 1) {
    launch(ctx, scan_columns<writes, Scan>, grid_for(parts, 128), 128, scan, lines, before, totals);
  } else if (lines.chunk <= 256) {
    launch(ctx, scan_rows<kWarp, writes, Scan>, grid_for(parts * kWarp, kWarp), kWarp, scan, lines, before, totals);
  } else {
    launch(ctx, scan_rows<kScanThreads, writes, Scan>, grid_for(parts * kScanThreads, kScanThreads), kScanThreads, scan,
           lines, before, totals);
  }
}

/// Splits lines into parts where they are few and long.
inline void split_lines(Lines& lines) {
  const int64_t wanted = int64_t{multiprocessors()} * (lines.inner > 1 ? 1024 : 4),
                shortest = lines.inner > 1 ? 64 : 4096;
  const int64_t parts = std::clamp<int64_t>(wanted / lines.count(), 1, std::max<int64_t>(lines.size / shortest, 1));
  lines.chunk = (lines.size + parts - 1) / parts;
  lines.parts = (lines.size + lines.chunk - 1) / lines.chunk;
}

/// Replaces the totals of the `parts` parts of `count` lines by the states before each.
template <class Scan>
void scan_totals(const OpContext& ctx, const Scan& scan, int64_t count, int64_t parts, typename Scan::State* totals) {
  Lines of_parts{count, parts, 1};
  of_parts.chunk = parts;
  using Parts = OverParts<Scan>;
  launch(ctx, scan_rows<kScanThreads, true, Parts>, grid_for(count * kScanThreads, kScanThreads), kScanThreads,
         Parts{scan, totals}, of_parts, nullptr, nullptr);
}

/// Scans all lines. Of those that are split into parts, the totals of these are scanned first. The results may replace the elements.
template <class Scan>
void run_scan(const OpContext& ctx, const Scan& scan, Lines lines) {
  const int64_t count = lines.count();
  if (count == 0 || lines.size == 0) return;
  split_lines(lines);
  if (lines.parts == 1) return launch_scan<true, Scan>(ctx, scan, lines, nullptr, nullptr);
  using State = typename Scan::State;
  const Scratch memory(static_cast<size_t>(count * lines.parts) * sizeof(State));
  State* const totals = static_cast<State*>(memory.data());
  launch_scan<false, Scan>(ctx, scan, lines, nullptr, totals);
  scan_totals(ctx, scan, count, lines.parts, totals);
  launch_scan<true, Scan>(ctx, scan, lines, totals, nullptr);
}

/// For each of `count` lines the total of its parts.
template <class Scan>
__global__ void add_up_parts(Scan scan, int64_t count, int64_t parts, const typename Scan::State* of_parts,
                             typename Scan::State* totals) {
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t line = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; line < count; line += step) {
    auto total = scan.nothing();
    for (int64_t part = 0; part < parts; ++part) total = scan.then(total, of_parts[line * parts + part]);
    put_state(totals + line, total);
  }
}
/// Replaces the totals of the parts by the states before each, where ranks first, first + rank_step, ... to before `mine` have what comes
/// before these parts; `of_ranks` are their totals [ranks, count].
template <class Scan>
__global__ void states_before_parts(Scan scan, int64_t count, int64_t parts, const typename Scan::State* of_ranks,
                                    int64_t first, int64_t rank_step, int64_t mine, typename Scan::State* of_parts) {
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t line = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; line < count; line += step) {
    auto state = scan.nothing();
    for (int64_t rank = first; rank != mine; rank += rank_step) state = scan.then(state, of_ranks[rank * count + line]);
    for (int64_t part = 0; part < parts; ++part) {
      const auto next = scan.then(state, of_parts[line * parts + part]);
      put_state(of_parts + line * parts + part, state);
      state = next;
    }
  }
}

/// The same as run_scan, of lines of which other ranks may have other parts: their totals come before.
template <class Scan>
void run_scan_of_ranks(const OpContext& ctx, const Scan& scan, Lines lines, Device device) {
  AxisReducer* const reducer = ctx.reducer();
  if (reducer == nullptr) return run_scan(ctx, scan, lines);
  using State = typename Scan::State;
  const int64_t count = lines.count();
  const bool is_empty = count == 0 || lines.size == 0;
  if (is_empty) lines.parts = 0;
  else split_lines(lines);
  const Scratch memory(static_cast<size_t>(std::max<int64_t>(count * lines.parts, 1)) * sizeof(State));
  State* const of_parts = static_cast<State*>(memory.data());
  if (!is_empty) launch_scan<false, Scan>(ctx, scan, lines, nullptr, of_parts);
  const DenseTensor totals =
      DenseTensor::allocate(device, {Dims{count * static_cast<int64_t>(sizeof(State))}, DType::uint8});
  const unsigned blocks = grid_for(std::max<int64_t>(count, 1), 128);
  if (count != 0)
    launch(ctx, add_up_parts<Scan>, blocks, 128, scan, count, lines.parts, of_parts, static_cast<State*>(totals.raw()));
  const Gathered gathered = reducer->all_gather(totals);
  if (is_empty) return;
  const int64_t first = lines.reverse ? gathered.all.dims()[0] - 1 : 0;
  launch(ctx, states_before_parts<Scan>, blocks, 128, scan, count, lines.parts,
         static_cast<const State*>(gathered.all.raw()), first, lines.reverse ? -1 : 1, gathered.mine, of_parts);
  launch_scan<true, Scan>(ctx, scan, lines, of_parts, nullptr);
}

}  // namespace shard::cuda
