// Embeddings on CUDA, and their gradient: positions are sorted by the row of the table that they name, and added up in that order.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/lines.cuh"
#include "shard/kernels/cuda/radix_sort.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// The rows of the table on this rank, of which that of the padding is all zeros.
struct TableRows {
  int64_t first, count, padding;

  /// The row of an id; -1 where there is none.
  __device__ int64_t row_of(int64_t id) const {
    const int64_t row = id - first;
    return row < 0 || row >= count || (padding != -1 && id == padding) ? -1 : row;
  }
};

template <class W, class N>
__global__ void embedding_kernel(W* out, const W* weight, Indices x, N words, N width, TableRows rows,
                                 IndexCheck check) {
  for (N i = grid_first<N>(); i < words; i += grid_step<N>()) {
    const N position = i / width, column = i - position * width;
    const int64_t id = x[static_cast<int64_t>(position)], row = rows.row_of(id);
    out[i] = row < 0 ? W{} : weight[row * static_cast<int64_t>(width) + static_cast<int64_t>(column)];
    if (column == 0) check.admits(static_cast<int64_t>(position), id);
  }
}

/// Rows that another rank holds are zeros here: the result is the sum of the contributions of all ranks.
void embedding(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weight, int64_t padding_idx,
               DenseTensor& out) {
  const Box box = ctx.input_box(1, weight);
  const int64_t count = x.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  const IndexCheck check(ctx, 0, "x", x, 0, box.global[0]);
  const uint64_t row = static_cast<uint64_t>(weight.dims()[1]) * size_of(weight.dtype());
  if (row == 0)
    return launch(ctx, check_indices_kernel<Indices>, grid_for(count, kThreads), kThreads, Indices(x), count, check);
  const int word = word_size({row, address(weight.raw()), address(out.raw())});
  const int64_t width = static_cast<int64_t>(row) / word, words = count * width;
  visit_word_and_index(word, words, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, embedding_kernel<W, N>, grid_for(words, kThreads), kThreads, static_cast<W*>(out.raw()),
           static_cast<const W*>(weight.raw()), Indices(x), static_cast<N>(words), static_cast<N>(width),
           TableRows{box.begin[0], weight.dims()[0], padding_idx}, check);
  });
}

/// The key of a position is its row, or the number of rows where it has none.
template <class K>
__global__ void key_positions(K* keys, K* places, Indices x, int64_t count, TableRows rows, IndexCheck check) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t id = x[i], row = check.admits(i, id) ? rows.row_of(id) : -1;
    keys[i] = static_cast<K>(row < 0 ? rows.count : row);
    places[i] = static_cast<K>(i);
  }
}

/// Positions in the order of their rows, in tiles. Sums of the positions of a row within one tile are results. A row of which positions
/// are in several tiles has a partial sum for each: of a tile, part 0 is of a row that began before, part 1 of one that goes on.
template <class T, class K>
struct SortedRows {
  static constexpr int64_t kTile = 32;
  const K *keys, *places;
  int64_t count, width;  // of positions, of a row
  K rows;
  const T* grad;
  T* out;
  math_t<T>* parts;  // [tiles, 2, width]

  __host__ __device__ int64_t tiles() const { return (count + kTile - 1) / kTile; }
  /// Whether positions i - 1 and i are of one row.
  __device__ bool goes_on(int64_t i) const { return i > 0 && i < count && keys[i - 1] == keys[i]; }
  /// The first position behind `from` of another row.
  __device__ int64_t end_of_row(int64_t from) const {
    const K key = keys[from];
    int64_t low = from, high = count;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (keys[middle] == key) low = middle;
      else high = middle;
    }
    return high;
  }
};

/// A thread adds up Width columns of the rows of a tile.
template <class T, class K, int Width>
__global__ void sum_tiles(SortedRows<T, K> s) {
  using M = math_t<T>;
  constexpr int kAhead = 4;  // loads that do not wait for each other
  const int64_t packs = s.width / Width;
  for (int64_t i = grid_first<int64_t>(); i < s.tiles() * packs; i += grid_step<int64_t>()) {
    const int64_t tile = i / packs, pack = i - tile * packs, begin = tile * s.kTile,
                  end = min(begin + s.kTile, s.count);
    K row = s.keys[begin];
    bool began_before = s.goes_on(begin);
    M sums[Width] = {};
    const auto finish = [&](bool goes_on) {
      if (row == s.rows) return;
      if (began_before || goes_on) {
        store_elements(s.parts + (2 * tile + (began_before ? 0 : 1)) * s.width + pack * Width, 0, sums);
      } else {
        T results[Width];
#pragma unroll
        for (int w = 0; w < Width; ++w) results[w] = store<T>(sums[w]);
        store_elements(s.out + static_cast<int64_t>(row) * s.width, pack, results);
      }
    };
    for (int64_t j = begin; j < end; j += kAhead) {
      K keys[kAhead];
      T values[kAhead][Width];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        keys[u] = j + u < end ? s.keys[j + u] : s.rows;
        if (keys[u] != s.rows) load_elements(s.grad + static_cast<int64_t>(s.places[j + u]) * s.width, pack, values[u]);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (j + u >= end) continue;
        if (keys[u] != row) {
          finish(false);
          row = keys[u];
          began_before = false;
#pragma unroll
          for (int w = 0; w < Width; ++w) sums[w] = 0;
        }
        if (row == s.rows) continue;
#pragma unroll
        for (int w = 0; w < Width; ++w) sums[w] += load(values[u][w]);
      }
    }
    finish(s.goes_on(end));
  }
}

/// The rows that are in several tiles, each by the threads of the tile in which it begins.
template <class T, class K, int Width>
__global__ void sum_parts(SortedRows<T, K> s) {
  using M = math_t<T>;
  const int64_t packs = s.width / Width;
  for (int64_t i = grid_first<int64_t>(); i < s.tiles() * packs; i += grid_step<int64_t>()) {
    const int64_t tile = i / packs, pack = i - tile * packs, begin = tile * s.kTile, end = begin + s.kTile;
    if (!s.goes_on(end)) continue;
    const K row = s.keys[end];
    if (row == s.rows || (s.goes_on(begin) && s.keys[begin] == row)) continue;
    const int64_t last = (s.end_of_row(end) - 1) / s.kTile;
    M sums[Width];
    const M* const parts = s.parts + pack * Width;
    load_elements(parts + (2 * tile + 1) * s.width, 0, sums);
#pragma unroll 4
    for (int64_t t = tile + 1; t <= last; ++t) {
      M more[Width];
      load_elements(parts + 2 * t * s.width, 0, more);
#pragma unroll
      for (int w = 0; w < Width; ++w) sums[w] += more[w];
    }
    T results[Width];
#pragma unroll
    for (int w = 0; w < Width; ++w) results[w] = store<T>(sums[w]);
    store_elements(s.out + static_cast<int64_t>(row) * s.width, pack, results);
  }
}

template <class T, class K>
void sum_sorted(const OpContext& ctx, SortedRows<T, K> s) {
  const Scratch memory(static_cast<size_t>(2 * s.tiles() * s.width) * sizeof(math_t<T>));
  s.parts = static_cast<math_t<T>*>(memory.data());
  const auto run = [&](auto* tiles, auto* parts, int width) {
    const unsigned blocks = grid_for(s.tiles() * (s.width / width), kThreads);
    launch(ctx, tiles, blocks, kThreads, s);
    if (s.tiles() > 1) launch(ctx, parts, blocks, kThreads, s);
  };
  constexpr int kWidth = Pack<T>::kSize;
  if (s.width % kWidth == 0 && is_aligned(s.grad) && is_aligned(s.out))
    run(sum_tiles<T, K, kWidth>, sum_parts<T, K, kWidth>, kWidth);
  else run(sum_tiles<T, K, 1>, sum_parts<T, K, 1>, 1);
}

template <class T, class K>
void sum_by_row(const OpContext& ctx, const DenseTensor& x, const TableRows& rows, const IndexCheck& check,
                const DenseTensor& out_grad, DenseTensor& weight_grad) {
  const int64_t count = x.numel();
  constexpr bool kWide = sizeof(K) == 8;
  PairMemory memory(count, kWide, kWide);
  Pairs& pairs = memory.pairs;
  launch(ctx, key_positions<K>, grid_for(count, kThreads), kThreads, static_cast<K*>(pairs.keys),
         static_cast<K*>(pairs.places), Indices(x), count, rows, check);
  radix_sort(pairs, key_bits(static_cast<uint64_t>(rows.count)));
  sum_sorted<T, K>(
      ctx, {static_cast<const K*>(pairs.keys), static_cast<const K*>(pairs.places), count, weight_grad.dims()[1],
            static_cast<K>(rows.count), elements<const T>(out_grad), elements<T>(weight_grad), nullptr});
}

/// For each row that this rank holds, adds up its gradients in the order of x.
template <class T>
void embedding_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weight, const DenseTensor& out_grad,
                    int64_t padding_idx, DenseTensor& weight_grad) {
  using D = device_t<T>;
  const Box box = ctx.input_box(1, weight);
  const int64_t count = x.numel();
  const DeviceScope scope(weight_grad.device().index);
  fill_zeros(weight_grad);
  if (count == 0) return;
  const IndexCheck check(ctx, 0, "x", x, 0, box.global[0]);
  if (weight_grad.numel() == 0)
    return launch(ctx, check_indices_kernel<Indices>, grid_for(count, kThreads), kThreads, Indices(x), count, check);
  const TableRows rows{box.begin[0], weight.dims()[0], padding_idx};
  if (std::max(rows.count, count) < int64_t{1} << 31)
    sum_by_row<D, uint32_t>(ctx, x, rows, check, out_grad, weight_grad);
  else sum_by_row<D, uint64_t>(ctx, x, rows, check, out_grad, weight_grad);
}

}  // namespace

void register_embedding(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("embedding", backend, dtype_of<T>, &embedding);
    register_kernel("embedding_grad", backend, dtype_of<T>, &embedding_grad<T>);
  });
}

}  // namespace shard::cuda
