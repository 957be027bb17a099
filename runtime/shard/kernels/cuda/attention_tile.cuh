// Products of tiles for attention on CUDA: kSide * kSide threads share a tile of scores and multiply through shared memory.
#pragma once

#include "shard/kernels/cuda/attention.cuh"

namespace shard::cuda {

inline constexpr int kSide = 16;
inline constexpr int kTileThreads = kSide * kSide;
inline constexpr int kDepth = 32;  // terms of a sum that are in shared memory at once

/// The rows and columns of a thread in a tile of C: 16 bytes.
template <class C>
inline constexpr int kEach = static_cast<int>(16 / sizeof(C));
template <class C>
inline constexpr int kTile = kSide* kEach<C>;

template <class C>
struct alignas(16) Run {
  C values[kEach<C>];
};

/// One access of a device, of which the model sees each number.
template <class C>
__device__ __forceinline__ Run<C> read_run(const C* from) {
  const Run<C>& there = *reinterpret_cast<const Run<C>*>(from);
  Run<C> run;
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) run.values[i] = there.values[i];
  return run;
}

/// Weights of a tile, or gradients of its scores: [term][row], where a term is a key or a query, and a row what sums are made for.
template <class C>
struct alignas(16) Weights {
  C lines[kTile<C>][kTile<C> + kEach<C>];
};

/// Rows in shared memory: of two factors of scores [depth][row], or what is added up with weights [term][column]. A thread has
/// Groups * kEach columns.
template <class C, int Groups>
union alignas(16) Stage {
  C factors[2][kDepth][kTile<C> + kEach<C>];
  C columns[kDepth][kTile<C> * Groups];
};

__device__ inline int tile_row() { return static_cast<int>(threadIdx.x) / kSide; }
__device__ inline int tile_column() { return static_cast<int>(threadIdx.x) % kSide; }

/// Copies kDepth columns from `first` on, and zeros around the rows. Lanes write to different banks.
template <class C, class T>
__device__ void load_factor(C (&to)[kDepth][kTile<C> + kEach<C>], const TileRows<T>& from, int64_t first) {
  constexpr int kLanes = 8;  // along a row
#pragma unroll
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kTile<C>; row += kTileThreads / kLanes) {
#pragma unroll
    for (int d = static_cast<int>(threadIdx.x) % kLanes; d < kDepth; d += kLanes) {
      const bool is_inside = row < from.count && first + d < from.width;
      to[d][row] = is_inside ? static_cast<C>(load(from.data[row * from.step + first + d])) : C(0);
    }
  }
}

/// sums[i][j] += the products of row i of a and row j of b, for the rows of this thread.
template <class C, int Groups, class T>
__device__ void multiply_rows(Stage<C, Groups>& stage, const TileRows<T>& a, const TileRows<T>& b,
                              C (&sums)[kEach<C>][kEach<C>]) {
  const int row = tile_row() * kEach<C>, column = tile_column() * kEach<C>;
  int64_t first = 0;
  do {
    __syncthreads();  // what was in the stage has been read
    load_factor<C>(stage.factors[0], a, first);
    load_factor<C>(stage.factors[1], b, first);
    __syncthreads();
    const int depth = a.width - first < kDepth ? static_cast<int>(a.width - first) : kDepth;
#pragma unroll 8
    for (int d = 0; d < depth; ++d) {
      const Run<C> x = read_run(&stage.factors[0][d][row]);
      const Run<C> y = read_run(&stage.factors[1][d][column]);
#pragma unroll
      for (int i = 0; i < kEach<C>; ++i) {
#pragma unroll
        for (int j = 0; j < kEach<C>; ++j) sums[i][j] += x.values[i] * y.values[j];
      }
    }
    first += kDepth;
  } while (first < a.width);
}

/// Copies rows [begin, begin + kDepth) of their columns from `first` on, and zeros around them. Returns whether one that this thread
/// copied is not finite.
template <class C, int Groups, class T>
__device__ bool load_columns(Stage<C, Groups>& stage, const TileRows<T>& from, int begin, int64_t first) {
  constexpr int kColumns = kTile<C> * Groups;
  bool is_finite = true;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kColumns; i += kTileThreads) {
    const int row = i / kColumns, column = i % kColumns;
    const bool is_inside = begin + row < from.count && first + column < from.width;
    const C value = is_inside ? static_cast<C>(load(from.data[(begin + row) * from.step + first + column])) : C(0);
    stage.columns[row][column] = value;
    is_finite = is_finite && value - value == C(0);
  }
  return !is_finite;
}

template <bool SkipsZeros, class C, int Groups>
__device__ void add_columns(const Stage<C, Groups>& stage, const Weights<C>& weights, int begin,
                            C (&sums)[kEach<C>][Groups * kEach<C>]) {
  const int row = tile_row() * kEach<C>, column = tile_column() * kEach<C>;
#pragma unroll 4
  for (int k = 0; k < kDepth; ++k) {
    const Run<C> weight = read_run(&weights.lines[begin + k][row]);
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      const Run<C> value = read_run(&stage.columns[k][g * kTile<C> + column]);
#pragma unroll
      for (int i = 0; i < kEach<C>; ++i) {
#pragma unroll
        for (int j = 0; j < kEach<C>; ++j) {
          C& sum = sums[i][g * kEach<C> + j];
          if (!SkipsZeros || weight.values[i] != C(0)) sum += weight.values[i] * value.values[j];
        }
      }
    }
  }
}

/// sums [row][column] += weights [term][row] * the columns of `terms` from `first` on. What has weight 0 adds nothing, even if it is
/// not finite: a query must not see what is hidden from it. All threads may have written weights just before.
template <class C, int Groups, class T>
__device__ void add_weighted(Stage<C, Groups>& stage, const Weights<C>& weights, const TileRows<T>& terms,
                             int64_t first, C (&sums)[kEach<C>][Groups * kEach<C>]) {
  for (int begin = 0; begin < terms.count; begin += kDepth) {
    __syncthreads();  // what was in the stage has been read
    const bool found = load_columns<C, Groups>(stage, terms, begin, first);
    if (__syncthreads_or(found)) add_columns<true>(stage, weights, begin, sums);
    else add_columns<false>(stage, weights, begin, sums);
  }
}

/// The rows and columns of a thread as weights whose terms are its columns, or its rows.
template <class C>
__device__ void store_by_column(Weights<C>& to, const C (&values)[kEach<C>][kEach<C>]) {
  const int row = tile_row() * kEach<C>, column = tile_column() * kEach<C>;
#pragma unroll
  for (int j = 0; j < kEach<C>; ++j) {
    Run<C>& run = *reinterpret_cast<Run<C>*>(&to.lines[column + j][row]);
#pragma unroll
    for (int i = 0; i < kEach<C>; ++i) run.values[i] = values[i][j];
  }
}
template <class C>
__device__ void store_by_row(Weights<C>& to, const C (&values)[kEach<C>][kEach<C>]) {
  const int row = tile_row() * kEach<C>, column = tile_column() * kEach<C>;
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
    Run<C>& run = *reinterpret_cast<Run<C>*>(&to.lines[row + i][column]);
#pragma unroll
    for (int j = 0; j < kEach<C>; ++j) run.values[j] = values[i][j];
  }
}

/// The larger number; NaN if there is one.
struct Larger {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a > b || a != a ? a : b;
  }
};

/// Combines the values of the threads that share rows; all of them get the result.
template <class C, class F>
__device__ C reduce_row(C value, F combine) {
#pragma unroll
  for (int bits = kSide / 2; bits > 0; bits /= 2) value = combine(value, shuffle_xor(value, bits));
  return value;
}

/// Makes products scores of the queries from `first` on and the keys from `start` on.
template <class C, class T>
__device__ void finish_scores(const Head<T>& head, int64_t first, int64_t start, C (&scores)[kEach<C>][kEach<C>]) {
  const int64_t row = first + tile_row() * kEach<C>, column = start + tile_column() * kEach<C>;
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
#pragma unroll
    for (int j = 0; j < kEach<C>; ++j) scores[i][j] = head.score(scores[i][j], row + i, column + j);
  }
}

/// Stores result(sum, row of the thread) for the sums of this thread, as columns from `first` on.
template <int Groups, class C, class T, class F>
__device__ void store_sums(const C (&sums)[kEach<C>][Groups * kEach<C>], const TileRows<T>& to, int64_t first,
                           F result) {
  const int row = tile_row() * kEach<C>, column = tile_column() * kEach<C>;
#pragma unroll
  for (int i = 0; i < kEach<C>; ++i) {
    if (row + i >= to.count) continue;
    T* const line = to.data + (row + i) * to.step;
#pragma unroll
    for (int c = 0; c < Groups * kEach<C>; ++c) {
      const int64_t at = first + c / kEach<C> * kTile<C> + column + c % kEach<C>;
      if (at < to.width) line[at] = store<T>(result(sums[i][c], i));
    }
  }
}

/// Where the jobs of a grid are: `tiles` for each slice of columns, each head and each sequence.
struct TileJobs {
  int64_t tiles, slices, heads, sequences;

  __host__ __device__ int64_t count() const { return tiles * slices * heads * sequences; }
};

/// A job: a tile of one slice of one head of one sequence. Tiles of causal attention that see most come first.
struct TileJob {
  int64_t tile, slice, head, sequence;

  __device__ TileJob(const TileJobs& jobs, int64_t number, bool from_last) {
    tile = number % jobs.tiles;
    if (from_last) tile = jobs.tiles - 1 - tile;
    number /= jobs.tiles;
    slice = number % jobs.slices;
    number /= jobs.slices;
    head = number % jobs.heads;
    sequence = number / jobs.heads;
  }
};

/// A block for each job.
inline unsigned grid_of(const TileJobs& jobs) {
  return static_cast<unsigned>(std::min<int64_t>(jobs.count(), INT32_MAX));
}

/// Calls body with the number of groups of columns of a thread, and how many slices of columns there are then.
template <class C, class Body>
void with_groups(int64_t width, const Body& body) {
  if constexpr (sizeof(C) == 4) {
    if (width <= kTile<C>) return body(std::integral_constant<int, 1>(), int64_t{1});
  }
  body(std::integral_constant<int, 2>(), std::max<int64_t>(1, divided_up(width, 2 * kTile<C>)));
}

}  // namespace shard::cuda
