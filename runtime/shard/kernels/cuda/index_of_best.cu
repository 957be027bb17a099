// Where the largest or smallest element of lines is on CUDA: argmax, argmin. The first of equal ones is; NaN is better than numbers.
#include <algorithm>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/order.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/kernels/cuda/scan.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kLines = 32;  // a block of the column kernel: neighbouring lines x slices of their elements
constexpr int kLineSlices = 8;

/// An element's key, in rising order of how good it is, and its place in its line; nothing, where the place is the last number.
template <class K>
struct BestElement {
  K key = 0;
  int64_t place = INT64_MAX;

  __device__ BestElement better(const BestElement& other) const {
    return other.key > key || (other.key == key && other.place < place) ? other : *this;
  }
};

template <class K>
struct Better {
  __device__ BestElement<K> operator()(const BestElement<K>& a, const BestElement<K>& b) const { return a.better(b); }
};

/// Element k of a line.
template <class D>
__device__ BestElement<Key<D>> best_of_one(const D* x, const Lines& lines, bool largest, int64_t line, int64_t k) {
  const D value = x[lines.place(line, k)];
  return {is_nan(value) ? kLastKey<D> : key_of(value, !largest), k};
}

/// Where results go: places of elements, or the best ones of parts of lines, of which part p of line i is p * lines + i.
template <class K>
struct BestResult {
  int64_t* places;
  int32_t* short_places;
  BestElement<K>* parts;

  __device__ void write(int64_t i, const BestElement<K>& best) const {
    if (parts != nullptr) {
      parts[i].key = best.key;
      parts[i].place = best.place;
    } else if (places != nullptr) {
      places[i] = best.place;
    } else {
      short_places[i] = static_cast<int32_t>(best.place);
    }
  }
};

/// A block of `Threads` threads for each part of a line.
template <int Threads, class D>
__global__ void best_of_rows(const D* x, Lines lines, bool largest, BestResult<Key<D>> out) {
  using K = Key<D>;
  const int64_t count = lines.count();
  for (int64_t part = blockIdx.x; part < count * lines.parts; part += gridDim.x) {
    const int64_t line = part % count, first = part / count * lines.chunk;
    const int64_t last = min(first + lines.chunk, lines.size);
    BestElement<K> mine;
    for (int64_t k = first + threadIdx.x; k < last; k += Threads)
      mine = mine.better(best_of_one(x, lines, largest, line, k));
    mine = block_reduce<Threads>(mine, Better<K>());
    if (threadIdx.x == 0) out.write(part, mine);
  }
}

/// Neighbouring threads have neighbouring lines.
template <class D>
__global__ void best_of_columns(const D* x, Lines lines, bool largest, BestResult<Key<D>> out) {
  using K = Key<D>;
  SHARD_SHARED(keys, K[kLineSlices][kLines]);
  SHARD_SHARED(places, int64_t[kLineSlices][kLines]);
  const int64_t count = lines.count(), groups = (count + kLines - 1) / kLines;
  for (int64_t part = blockIdx.x; part < groups * lines.parts; part += gridDim.x) {
    const int64_t line = part % groups * kLines + threadIdx.x, first = part / groups * lines.chunk;
    const int64_t last = min(first + lines.chunk, lines.size);
    BestElement<K> mine;
    if (line < count) {
      for (int64_t k = first + threadIdx.y; k < last; k += kLineSlices)
        mine = mine.better(best_of_one(x, lines, largest, line, k));
    }
    keys[threadIdx.y][threadIdx.x] = mine.key;
    places[threadIdx.y][threadIdx.x] = mine.place;
    __syncthreads();
    if (threadIdx.y == 0 && line < count) {
      for (int s = 1; s < kLineSlices; ++s) mine = mine.better({keys[s][threadIdx.x], places[s][threadIdx.x]});
      out.write(part / groups * count + line, mine);
    }
    __syncthreads();
  }
}

/// One warp for each line.
template <class K>
__global__ void best_of_parts(const BestElement<K>* from, int64_t count, int64_t parts, BestResult<K> out) {
  for (int64_t line = blockIdx.x; line < count; line += gridDim.x) {
    BestElement<K> mine;
    for (int64_t part = threadIdx.x; part < parts; part += kWarp) mine = mine.better(from[part * count + line]);
    mine = warp_reduce(mine, Better<K>());
    if (threadIdx.x == 0) out.write(line, mine);
  }
}

/// The best of the parts of lines that are here, as numbers that ranks compare: keys in the order of int64, and places in whole lines. Where
/// nothing of a line is here, the least key and the last place.
template <class K>
struct RankBest {
  const BestElement<K>* parts;
  int64_t count, parts_of_line;
  bool flattened;
  int64_t first;      // of whole lines: the first place that is here
  GlobalIndex index;  // of a flattened tensor
  int64_t *keys, *places;
};
template <class K>
__global__ void best_of_rank(RankBest<K> rank) {
  for (int64_t line = blockIdx.x; line < rank.count; line += gridDim.x) {
    BestElement<K> mine;
    for (int64_t part = threadIdx.x; part < rank.parts_of_line; part += kWarp)
      mine = mine.better(rank.parts[part * rank.count + line]);
    mine = warp_reduce(mine, Better<K>());
    if (threadIdx.x != 0) continue;
    const bool is_nothing = mine.place == INT64_MAX;
    rank.keys[line] = is_nothing ? INT64_MIN : static_cast<int64_t>(uint64_t{mine.key} ^ (uint64_t{1} << 63));
    rank.places[line] = is_nothing ? INT64_MAX : rank.flattened ? rank.index.of(mine.place) : rank.first + mine.place;
  }
}
/// Leaves the places of the best keys of all ranks.
__global__ void drop_losers(int64_t count, const int64_t* best, const int64_t* mine, int64_t* places) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    if (mine[i] != best[i]) places[i] = INT64_MAX;
  }
}
template <class Out>
__global__ void store_places(int64_t count, const int64_t* places, Out* out) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) out[i] = static_cast<Out>(places[i]);
}

/// Of the lines of which other ranks hold other parts: the largest key of all ranks wins, and of equal ones the first place.
template <class K>
void combine_best(const OpContext& ctx, RankBest<K> rank, DenseTensor& out) {
  const Meta lines{Dims{rank.count}, DType::int64};
  DenseTensor best = DenseTensor::allocate(out.device(), lines), mine = DenseTensor::allocate(out.device(), lines),
              places = DenseTensor::allocate(out.device(), lines);
  rank.keys = mine.data<int64_t>();
  rank.places = places.data<int64_t>();
  if (rank.count != 0) {
    launch(ctx, best_of_rank<K>, grid_for(rank.count * kWarp, kWarp), kWarp, rank);
    copy_bytes(out.device(), best.raw(), out.device(), mine.raw(), best.meta().bytes());
  }
  ctx.all_reduce(best, ReduceType::max);
  const unsigned blocks = grid_for(std::max<int64_t>(rank.count, 1), kThreads);
  launch(ctx, drop_losers, blocks, kThreads, rank.count, best.data<int64_t>(), rank.keys, rank.places);
  ctx.all_reduce(places, ReduceType::min);
  if (out.dtype() == DType::int64)
    launch(ctx, store_places<int64_t>, blocks, kThreads, rank.count, rank.places, elements<int64_t>(out));
  else launch(ctx, store_places<int32_t>, blocks, kThreads, rank.count, rank.places, elements<int32_t>(out));
}

/// Long lines are split into parts where there are too few `blocks` to fill the device. Parts begin at multiples of `unit` elements.
void split_lines(Lines& lines, int64_t blocks, int64_t smallest, int64_t unit) {
  const int64_t wanted = int64_t{multiprocessors()} * 8 / blocks;
  const int64_t parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(lines.size / smallest, 1));
  lines.chunk = std::min((lines.size + parts * unit - 1) / (parts * unit) * unit, lines.size);
  lines.parts = (lines.size + lines.chunk - 1) / lines.chunk;
}

template <class D>
void launch_best(const OpContext& ctx, const D* x, const Lines& lines, bool largest, const BestResult<Key<D>>& out) {
  const int64_t parts = lines.count() * lines.parts;
  if (lines.inner > 1) {
    const int64_t groups = (lines.count() + kLines - 1) / kLines * lines.parts;
    launch(ctx, best_of_columns<D>, grid_for(groups * kThreads, kThreads), dim3(kLines, kLineSlices), x, lines, largest,
           out);
  } else if (lines.chunk <= kThreads) {
    launch(ctx, best_of_rows<kWarp, D>, grid_for(parts * kWarp, kWarp), kWarp, x, lines, largest, out);
  } else {
    launch(ctx, best_of_rows<kThreads, D>, grid_for(parts * kThreads, kThreads), kThreads, x, lines, largest, out);
  }
}

template <class T, bool largest>
void index_of_best(const OpContext& ctx, const DenseTensor& x, const Scalar& axis, bool flatten, DenseTensor& out) {
  using D = sortable_t<T>;
  using K = Key<D>;
  Lines lines = flatten ? Lines{1, x.numel(), 1} : lines_along(ctx, x.dims(), axis.to<int64_t>());
  const bool combines = ctx.reducer() != nullptr, is_empty = x.numel() == 0;
  if (is_empty && !combines) return;
  const DeviceScope scope(out.device().index);
  if (is_empty) lines.parts = 0;
  else if (lines.inner > 1) split_lines(lines, (lines.count() + kLines - 1) / kLines, 512, 1);
  else split_lines(lines, lines.count(), 4096, 128);  // elements of any size that fill lines of memory
  const bool is_long = out.dtype() == DType::int64, has_parts = lines.parts != 1 || combines;
  const Scratch memory(
      has_parts ? static_cast<size_t>(std::max<int64_t>(lines.count() * lines.parts, 1)) * sizeof(BestElement<K>) : 1);
  auto* const parts = static_cast<BestElement<K>*>(memory.data());
  const BestResult<K> result{is_long ? elements<int64_t>(out) : nullptr, is_long ? nullptr : elements<int32_t>(out),
                             nullptr};
  if (!is_empty)
    launch_best(ctx, elements<const D>(x), lines, largest, has_parts ? BestResult<K>{nullptr, nullptr, parts} : result);
  if (combines) {
    const Box box = ctx.input_box(0, x);
    const int64_t first = flatten ? 0 : box.begin[normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank())];
    return combine_best<K>(ctx, {parts, lines.count(), lines.parts, flatten, first, {box, x.dims()}, nullptr, nullptr},
                           out);
  }
  if (!has_parts) return;
  launch(ctx, best_of_parts<K>, grid_for(lines.count() * kWarp, kWarp), kWarp, parts, lines.count(), lines.parts,
         result);
}

}  // namespace

void register_index_of_best(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("argmax", backend, dtype_of<T>, &index_of_best<T, true>);
    register_kernel("argmin", backend, dtype_of<T>, &index_of_best<T, false>);
  });
}

}  // namespace shard::cuda
