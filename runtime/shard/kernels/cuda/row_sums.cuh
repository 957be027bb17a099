// Sums, or other reductions, of the sources of each destination, and copies of the last ones. The order of a sum is that of its sources,
// part by part (grouping.cuh): it depends on nothing but them.
#pragma once

#include <algorithm>
#include <bit>

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/grouping.cuh"
#include "shard/kernels/cuda/map.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

// A reduction is a struct with a type Element and a type State, and functions of row `row` or source `source` of slab `slab`, for the
// elements [at * V, at * V + V) of a row:
//   template <int V> bool start(int64_t slab, int64_t row, int64_t at, State (&states)[V]) const;   what sources are added to;
//                                                                                  false where there is nothing
//   template <int V> void source(int64_t slab, int64_t source, int64_t at, State (&states)[V]) const;
//   State then(State before, State next) const;                                    commutes, up to rounding
//   template <int V> void write(int64_t slab, int64_t row, int64_t at, int64_t count, const State (&states)[V]) const;
//                                                                                  count: the sources of the row
//   template <int V> bool packs() const;      on the host: whether V elements may be one access; without it V is 1

/// Elements that a thread of a reduction accesses at once.
template <class T>
inline constexpr int kRowPack = sizeof(T) == 8 ? 2 : 4;

/// Elements [i * V, i * V + V) of a row that may be read again.
template <int V, class T>
__device__ void read_elements(const T* from, int64_t i, T (&values)[V]) {
  using Word = AccessWord<V* static_cast<int>(sizeof(T))>;
  static_assert(sizeof(Word) == V * sizeof(T));
  const Word word = reinterpret_cast<const Word*>(from)[i];
  memcpy(reinterpret_cast<char*>(values), &word, sizeof(Word));
}
template <int V, class State, class T>
__device__ void read_states(const T* from, int64_t i, State (&states)[V]) {
  T values[V];
  read_elements<V>(from, i, values);
#pragma unroll
  for (int v = 0; v < V; ++v) states[v] = static_cast<State>(load(values[v]));
}

/// The sums of parts of groups: a thread of x for `V` elements, of y for a place, of z for a slab. Those of long groups go to `partial`, by
/// slab, slot and element.
template <int V, class Sum>
__global__ void sum_parts(Sum sum, Groups groups, int64_t slabs, int64_t packs, typename Sum::State* partial) {
  using State = typename Sum::State;
  constexpr int kAhead = 4;  // sources that are read before any is added
  for (int64_t slab = int64_t{blockIdx.y} * blockDim.z + threadIdx.z; slab < slabs;
       slab += int64_t{gridDim.y} * blockDim.z) {
    for (int64_t place = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; place < groups.count;
         place += int64_t{gridDim.x} * blockDim.y) {
      const int part = groups.part[place];
      if (part == 0) continue;
      const int count = part & (Groups::kFirst - 1);
      const bool is_first = (part & Groups::kFirst) != 0, is_last = (part & Groups::kLast) != 0;
      const int64_t row = groups.row[place];
      for (int64_t at = int64_t{blockIdx.z} * blockDim.x + threadIdx.x; at < packs;
           at += int64_t{gridDim.z} * blockDim.x) {
        State states[V];
        int k = 0;
        if (!is_first || !sum.template start<V>(slab, row, at, states)) {
          sum.template source<V>(slab, groups.source_at(place), at, states);
          k = 1;
        }
        for (; k + kAhead <= count; k += kAhead) {
          State next[kAhead][V];
#pragma unroll
          for (int j = 0; j < kAhead; ++j) sum.template source<V>(slab, groups.source_at(place + k + j), at, next[j]);
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
#pragma unroll
            for (int v = 0; v < V; ++v) states[v] = sum.then(states[v], next[j][v]);
          }
        }
        for (; k < count; ++k) {
          State next[V];
          sum.template source<V>(slab, groups.source_at(place + k), at, next);
#pragma unroll
          for (int v = 0; v < V; ++v) states[v] = sum.then(states[v], next[v]);
        }
        if (is_first && is_last) {
          sum.template write<V>(slab, row, at, count, states);
        } else {
          State* const to = partial + ((slab * groups.slots() + Groups::slot(place, is_last)) * packs + at) * V;
#pragma unroll
          for (int v = 0; v < V; ++v) to[v] = states[v];
        }
      }
    }
  }
}

/// The sums of long groups from those of their parts: a block for some elements of a row, whose threads of y share the parts.
template <int Threads, class Sum>
__global__ void sum_long_groups(Sum sum, Groups groups, int64_t slabs, int64_t width,
                                const typename Sum::State* partial) {
  using State = typename Sum::State;
  SHARD_SHARED(shares, State[Threads]);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int columns = static_cast<int>(blockDim.x), ways = static_cast<int>(blockDim.y);
  const int64_t tiles = (width + columns - 1) / columns, jobs = int64_t{*groups.long_count} * slabs * tiles;
  for (int64_t job = blockIdx.x; job < jobs; job += gridDim.x) {
    const int64_t tile = job % tiles, slab = job / tiles % slabs;
    const LongGroup group = groups.long_groups[job / tiles / slabs];
    const int64_t parts = (group.count + kPart - 1) / kPart, column = tile * columns + x;
    const auto share_of = [&](int64_t part) {
      const int64_t slot = Groups::slot(group.begin + part * kPart, part == parts - 1);
      return partial[(slab * groups.slots() + slot) * width + column];
    };
    __syncthreads();  // the last job has read them
    if (y < parts && column < width) {
      State share = share_of(y);
#pragma unroll 4
      for (int64_t part = y + ways; part < parts; part += ways) share = sum.then(share, share_of(part));
      shares[y * columns + x] = share;
    }
    __syncthreads();
    for (int half = ways / 2; half > 0; half /= 2) {
      if (y < half && y + half < parts && column < width)
        shares[y * columns + x] = sum.then(shares[y * columns + x], shares[(y + half) * columns + x]);
      __syncthreads();
    }
    if (y == 0 && column < width) {
      const State states[1] = {shares[x]};
      sum.template write<1>(slab, groups.row[group.begin], column, group.count, states);
    }
  }
}

/// The shapes of grids whose blocks have threads of x for `items` items of a row, and threads of y for `count` rows, of each of
/// `slabs` slabs (threads of z, blocks of y). Rows are divided among blocks (of z) where there are few.
struct RowGrid {
  dim3 blocks, threads;

  RowGrid(int64_t count, int64_t slabs, int64_t items) {
    constexpr unsigned kThreads = 256;
    const int64_t wanted = int64_t{multiprocessors()} * 16;
    const unsigned x = threads_for(items, 64), y = threads_for(count, kThreads / x);
    const unsigned z = threads_for(slabs, std::min(kThreads / (x * y), 64u));
    const int64_t of_count = blocks_for(count, y, wanted), of_slabs = blocks_for(slabs, z, wanted / of_count);
    const int64_t of_items = blocks_for(items, x, wanted / (of_count * of_slabs));
    threads = dim3(x, y, z);
    blocks = dim3(static_cast<unsigned>(of_count), static_cast<unsigned>(of_slabs), static_cast<unsigned>(of_items));
  }

 private:
  static unsigned threads_for(int64_t number, unsigned most) {
    return std::bit_ceil(static_cast<unsigned>(std::clamp<int64_t>(number, 1, most)));
  }
  static int64_t blocks_for(int64_t number, unsigned of_block, int64_t most) {
    return std::clamp<int64_t>((number + of_block - 1) / of_block, 1, std::max<int64_t>(most, 1));
  }
};

/// Reduces the sources of each row that has any, in `slabs` slabs of rows of `width` elements.
template <class Sum>
void sum_groups(const OpContext& ctx, const Grouping& grouping, int64_t slabs, int64_t width, const Sum& sum) {
  using State = typename Sum::State;
  constexpr int kPack = kRowPack<typename Sum::Element>, kThreads = 256;
  const Groups groups = grouping.groups();
  if (groups.count == 0 || slabs == 0 || width == 0) return;
  const bool has_long = groups.most_long() != 0;
  const Scratch memory(has_long ? static_cast<size_t>(slabs * groups.slots() * width) * sizeof(State) : 0);
  State* const partial = static_cast<State*>(memory.data());
  const auto add_parts = [&]<int V>(std::integral_constant<int, V>) {
    const RowGrid grid(groups.count, slabs, width / V);
    launch(ctx, sum_parts<V, Sum>, grid.blocks, grid.threads, sum, groups, slabs, width / V, partial);
  };
  bool is_packed = false;
  if constexpr (requires { sum.template packs<kPack>(); }) {
    is_packed = width % kPack == 0 && sum.template packs<kPack>();
    if (is_packed) add_parts(std::integral_constant<int, kPack>());
  }
  if (!is_packed) add_parts(std::integral_constant<int, 1>());
  if (!has_long) return;
  const unsigned x = std::bit_ceil(static_cast<unsigned>(std::min<int64_t>(width, kWarp)));
  const int64_t jobs = groups.most_long() * slabs * ((width + x - 1) / x);
  launch(ctx, sum_long_groups<kThreads, Sum>,
         static_cast<unsigned>(std::min<int64_t>(jobs, int64_t{multiprocessors()} * 8)), dim3(x, kThreads / x), sum,
         groups, slabs, width, partial);
}

/// What sums of rows of D have in common: they are written to rows of `out`, of which a slab has `size`, and begin with those of
/// `first`, unless it is null.
template <class D>
struct RowsOfSums {
  using Element = D;
  using State = math_t<D>;
  const D* first;
  D* out;
  int64_t size, width;

  template <int V>
  __device__ bool start(int64_t slab, int64_t row, int64_t at, State (&states)[V]) const {
    if (first == nullptr) return false;
    read_states<V>(first + (slab * size + row) * width, at, states);
    return true;
  }
  __device__ State then(State before, State next) const { return wrap_add(before, next); }
  template <int V>
  __device__ void write(int64_t slab, int64_t row, int64_t at, int64_t, const State (&states)[V]) const {
    store_numbers<V>(out + (slab * size + row) * width, at, states);
  }
  template <int V>
  bool rows_pack() const {
    return packs_are_aligned<V>(first, static_cast<const D*>(out));
  }
};

/// Writes the row of each source that is the last one of its row: `width` words. Where `zeros`, it becomes 0.
template <class W>
__global__ void write_last_rows(LastSourcesView view, int64_t count, int64_t width, const W* from, bool zeros, W* out) {
  for (int64_t source = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; source < count;
       source += int64_t{gridDim.x} * blockDim.y) {
    const int64_t row = view.row_written_by(source);
    if (row < 0) continue;
    for (int64_t i = int64_t{blockIdx.z} * blockDim.x + threadIdx.x; i < width; i += int64_t{gridDim.z} * blockDim.x)
      out[row * width + i] = zeros ? W{} : from[source * width + i];
  }
}

/// Copies the last source of each row, of `row_bytes` bytes, from `from` to `out`, or zeros where `from` is null.
inline void write_last(const OpContext& ctx, const LastSources& last, size_t row_bytes, const void* from, void* out) {
  if (last.count() == 0 || row_bytes == 0) return;
  const int word = word_size({row_bytes, address(from), address(out)});
  const int64_t width = static_cast<int64_t>(row_bytes) / word;
  const RowGrid grid(last.count(), 1, width);
  visit_word(word, [&]<class W>(TypeTag<W>) {
    launch(ctx, write_last_rows<W>, grid.blocks, grid.threads, last.view(), last.count(), width,
           static_cast<const W*>(from), from == nullptr, static_cast<W*>(out));
  });
}

}  // namespace shard::cuda
