// Sorts and selections along one dim on CUDA: argsort, topk, kthvalue, mode. A block sorts short lines in shared memory; it selects
// from long ones, or the device sorts them.
#include <algorithm>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/device_sort.cuh"
#include "shard/kernels/cuda/select.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// Writes the first elements of lines in order, and their places in these: lines of `kept` elements with `inner` lines beside each
/// other.
template <class D>
struct FirstInOrder {
  const D* x;
  const int64_t* names;  // of the elements of x, where they are not those of their places in their lines
  int64_t kept, inner;
  D* out;
  int64_t* indices;

  /// Element `rank` of line `to_line` is element k of a line.
  __device__ void write(const Lines& lines, int64_t line, int64_t k, int64_t to_line, int64_t rank) const {
    const int64_t from = lines.place(line, k);
    const int64_t to = inner == 1 ? to_line * kept + rank : (to_line / inner * kept + rank) * inner + to_line % inner;
    out[to] = x[from];
    indices[to] = names == nullptr ? k : names[from];
  }
  __device__ void operator()(const Lines& lines, const SortedTile<Key<D>>& tile) const {
    const int each = static_cast<int>(kept), all = tile.lines * each;
    for (int e = static_cast<int>(threadIdx.x); e < all; e += kSortThreads) {
      const int line = inner == 1 ? e / each : e % tile.lines, rank = inner == 1 ? e % each : e / tile.lines;
      if (tile.first + line >= lines.count()) continue;
      write(lines, tile.first + line, tile.places[line * tile.width + rank], tile.first + line, rank);
    }
  }
};

template <class D>
__global__ void write_sorted_kernel(Lines lines, Integers places, FirstInOrder<D> finish) {
  const int64_t count = lines.count() * finish.kept;
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t line = i / finish.kept, rank = i - line * finish.kept, begin = line * lines.size;
    finish.write(lines, line, places[begin + rank] - begin, line, rank);
  }
}

/// Into how many parts lines are split, from which blocks select `kept` elements each: enough of them to fill the device, and of so
/// many elements that few are left.
int64_t parts_of(const Lines& lines, int64_t kept) {
  const int64_t wanted = 2 * int64_t{multiprocessors()} / lines.count();
  return std::clamp<int64_t>(lines.size / std::max<int64_t>(8 * kept, 8 * kSortTile), 1, std::max<int64_t>(wanted, 1));
}

template <class D>
void select(const OpContext& ctx, const Lines& lines, int64_t parts, bool descending, const FirstInOrder<D>& finish) {
  const int kept = static_cast<int>(finish.kept);
  launch(ctx, select_kernel<D, Lines, FirstInOrder<D>>, grid_for(lines.count() * parts * kSortThreads, kSortThreads),
         kSortThreads, finish.x, lines, descending, parts, kept, tile_width(kept), finish);
}

/// The first `finish.kept` elements of each line in order.
template <class D>
void first_in_order(const OpContext& ctx, const Lines& lines, bool descending, const FirstInOrder<D>& finish) {
  if (lines.count() == 0 || finish.kept == 0) return;
  if (lines.size <= kSortTile) return sort_tiles(ctx, finish.x, lines, descending, finish);
  if (finish.kept > kSortTile) {
    const DeviceSort<D, Lines> sorted(ctx, finish.x, lines, descending);
    launch(ctx, write_sorted_kernel<D>, grid_for(lines.count() * finish.kept, kThreads), kThreads, lines,
           sorted.places(), finish);
    return;
  }
  const int64_t parts = parts_of(lines, finish.kept);
  if (parts == 1) return select(ctx, lines, 1, descending, finish);
  // of parts of lines first, in their order, so that equal elements stay in theirs
  const int64_t left = lines.count() * parts * finish.kept;
  const Scratch values(static_cast<size_t>(left) * sizeof(D)), names(static_cast<size_t>(left) * sizeof(int64_t));
  D* const candidates = static_cast<D*>(values.data());
  int64_t* const places = static_cast<int64_t*>(names.data());
  select(ctx, lines, parts, descending, FirstInOrder<D>{finish.x, nullptr, finish.kept, 1, candidates, places});
  FirstInOrder<D> last = finish;
  last.x = candidates;
  last.names = places;
  first_in_order(ctx, {lines.count(), parts * finish.kept, 1}, descending, last);
}

template <class T>
void sort_first(const OpContext& ctx, const DenseTensor& x, const Lines& lines, int64_t kept, bool descending,
                DenseTensor& out, DenseTensor& indices) {
  using D = sortable_t<T>;
  const DeviceScope scope(out.device().index);
  first_in_order(
      ctx, lines, descending,
      FirstInOrder<D>{elements<const D>(x), nullptr, kept, lines.inner, elements<D>(out), elements<int64_t>(indices)});
}

template <class T>
void argsort(const OpContext& ctx, const DenseTensor& x, int axis, bool descending, DenseTensor& out,
             DenseTensor& indices) {
  const Lines lines = lines_along(ctx, x.dims(), axis);
  sort_first<T>(ctx, x, lines, lines.size, descending, out, indices);
}

/// The first elements of a rank's part of each line [lines, most], in order, and their places in the whole line; a place is -1 where the
/// part has fewer.
template <class D>
struct Candidates {
  const D* values;
  const int64_t* places;
};

/// Writes those of lines of `kept` elements, whose places are counted from `first` on.
template <class D>
__global__ void spread_candidates(Candidates<D> from, int64_t lines, int64_t kept, int64_t most, int64_t first,
                                  D* values, int64_t* places) {
  for (int64_t i = grid_first<int64_t>(); i < lines * most; i += grid_step<int64_t>()) {
    const int64_t line = i / most, rank = i - line * most;
    const bool is_there = rank < kept;
    values[i] = is_there ? from.values[line * kept + rank] : D();
    places[i] = is_there ? first + from.places[line * kept + rank] : -1;
  }
}

/// How many of a part's `most` candidates come before one with this key, of which equal ones do if the part is an earlier one.
template <class D>
__device__ int64_t count_before(const Candidates<D>& part, int64_t most, bool descending, Key<D> key, bool is_earlier) {
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const Key<D> other = key_of(part.values[middle], descending);
    const bool is_before = part.places[middle] >= 0 && (other < key || (is_earlier && other == key));
    if (is_before) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// Writes the first candidates of all parts. The rank of one is its rank in its part and the number of those in others before it.
template <class D>
__global__ void merge_candidates(Candidates<D> all, int64_t parts, int64_t lines, bool descending,
                                 FirstInOrder<D> finish) {
  const int64_t most = finish.kept, of_part = lines * most;
  for (int64_t i = grid_first<int64_t>(); i < parts * of_part; i += grid_step<int64_t>()) {
    if (all.places[i] < 0) continue;
    const int64_t part = i / of_part, line = i % of_part / most;
    const Key<D> key = key_of(all.values[i], descending);
    int64_t rank = i % most;
    for (int64_t other = 0; other < parts && rank < most; ++other) {
      const int64_t begin = other * of_part + line * most;
      if (other != part)
        rank +=
            count_before(Candidates<D>{all.values + begin, all.places + begin}, most, descending, key, other < part);
    }
    if (rank < most) finish.write({1, parts * of_part, 1}, 0, i, line, rank);
  }
}

/// The first elements of lines of which other ranks have parts: those of all parts, merged. Of equal ones the lower index is first, in
/// each part and among them.
template <class T>
void first_of_parts(const OpContext& ctx, const DenseTensor& x, const Lines& lines, int64_t first, bool descending,
                    FirstInOrder<sortable_t<T>> finish) {
  using D = sortable_t<T>;
  const int64_t most = finish.kept, kept = std::min(most, lines.size), count = lines.count();
  if (count * most == 0) return;
  const auto bytes = static_cast<size_t>(std::max<int64_t>(count * kept, 1));
  const Scratch mine(bytes * sizeof(D)), of_mine(bytes * sizeof(int64_t));
  FirstInOrder<D> local{
      finish.x, nullptr, kept, 1, static_cast<D*>(mine.data()), static_cast<int64_t*>(of_mine.data())};
  first_in_order(ctx, lines, descending, local);
  const DenseTensor values = DenseTensor::allocate(x.device(), {Dims{count * most}, x.dtype()}),
                    places = DenseTensor::allocate(x.device(), {Dims{count * most}, DType::int64});
  launch(ctx, spread_candidates<D>, grid_for(count * most, kThreads), kThreads, {local.out, local.indices}, count, kept,
         most, first, elements<D>(values), elements<int64_t>(places));
  const Gathered all = ctx.reducer()->all_gather(values), names = ctx.reducer()->all_gather(places);
  const int64_t parts = all.all.dims()[0];
  finish.x = elements<const D>(all.all);
  finish.names = elements<const int64_t>(names.all);
  launch(ctx, merge_candidates<D>, grid_for(parts * count * most, kThreads), kThreads, {finish.x, finish.names}, parts,
         count, descending, finish);
}

template <class T>
void topk(const OpContext& ctx, const DenseTensor& x, int axis, bool largest, DenseTensor& out, DenseTensor& indices) {
  const Lines lines = lines_along(ctx, x.dims(), axis);
  const int64_t kept = lines_along(ctx, out.dims(), axis).size;
  if (ctx.reducer() == nullptr) return sort_first<T>(ctx, x, lines, kept, largest, out, indices);
  using D = sortable_t<T>;
  const DeviceScope scope(out.device().index);
  const int64_t first = ctx.input_box(0, x).begin[normalize_axis(ctx.op, "axis", axis, x.dims().rank())];
  first_of_parts<T>(ctx, x, lines, first, largest,
                    {elements<const D>(x), nullptr, kept, lines.inner, elements<D>(out), elements<int64_t>(indices)});
}

/// Writes one element of each line.
template <class D>
struct WriteOne {
  const D* x;
  D* out;
  int64_t* indices;

  __device__ void write(const Lines& lines, int64_t line, int64_t k) const {
    out[line] = x[lines.place(line, k)];
    indices[line] = k;
  }
};

template <class D>
struct WriteRank {
  WriteOne<D> one;
  int64_t rank;

  __device__ void operator()(const Lines& lines, const SortedTile<Key<D>>& tile) const {
    for (int i = static_cast<int>(threadIdx.x); i < tile.lines && tile.first + i < lines.count(); i += kSortThreads)
      one.write(lines, tile.first + i, tile.places[i * tile.width + rank]);
  }
};

/// Of lines that a block reads, or that were sorted.
template <class D>
__global__ void __launch_bounds__(kSortThreads) find_rank_kernel(Lines lines, WriteRank<D> finish) {
  for (int64_t line = blockIdx.x; line < lines.count(); line += gridDim.x) {
    const Ranked<Key<D>> found = find_rank(finish.one.x, lines, line, 0, lines.size, false, finish.rank);
    const int64_t k = find_equal(finish.one.x, lines, line, found.key, finish.rank - found.before);
    if (threadIdx.x == 0) finish.one.write(lines, line, k);
  }
}
template <class D>
__global__ void write_rank_kernel(Lines lines, Integers places, WriteRank<D> finish) {
  for (int64_t line = grid_first<int64_t>(); line < lines.count(); line += grid_step<int64_t>())
    finish.one.write(lines, line, places[line * lines.size + finish.rank] - line * lines.size);
}

template <class T>
void kthvalue(const OpContext& ctx, const DenseTensor& x, int k, int axis, DenseTensor& out, DenseTensor& indices) {
  using D = sortable_t<T>;
  const Lines lines = lines_along(ctx, x.dims(), axis);
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const WriteRank<D> finish{{elements<const D>(x), elements<D>(out), elements<int64_t>(indices)}, k - 1};
  if (lines.size <= kSortTile) return sort_tiles(ctx, finish.one.x, lines, false, finish);
  if (blocks_select(lines)) {
    launch(ctx, find_rank_kernel<D>, grid_for(lines.count() * kSortThreads, kSortThreads), kSortThreads, lines, finish);
    return;
  }
  const DeviceSort<D, Lines> sorted(ctx, finish.one.x, lines, false);
  launch(ctx, write_rank_kernel<D>, grid_for(lines.count(), kThreads), kThreads, lines, sorted.places(), finish);
}

/// A run of equal elements in a sorted line, of which the last is at `end`.
struct EqualRun {
  int64_t length = 0, end = 0;

  /// The longer one, or else the first.
  __device__ EqualRun best(const EqualRun& other) const {
    return other.length > length || (other.length == length && other.end < end) ? other : *this;
  }
};

/// The run that ends at entry `end` of a sorted line; none where the next entry is equal. key_at(i) is the key of entry i.
template <class KeyAt>
__device__ EqualRun run_ending_at(const KeyAt& key_at, int64_t size, int64_t end) {
  const auto key = key_at(end);
  if (end + 1 < size && key_at(end + 1) == key) return {};
  int64_t low = 0, high = end;  // the first entry with this key is in [low, high]
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (key_at(middle) < key) low = middle + 1;
    else high = middle;
  }
  return {end + 1 - low, end};
}

/// One warp for each line of a tile.
template <class D>
struct WriteMode {
  WriteOne<D> one;

  __device__ void operator()(const Lines& lines, const SortedTile<Key<D>>& tile) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < tile.lines && tile.first + i < lines.count();
         i += kSortThreads / kWarp) {
      const Key<D>* const keys = tile.keys + i * tile.width;
      EqualRun mine;
      for (int64_t end = lane; end < lines.size; end += kWarp)
        mine = mine.best(run_ending_at([=](int64_t k) { return keys[k]; }, lines.size, end));
      mine = warp_reduce(mine, [](const EqualRun& a, const EqualRun& b) { return a.best(b); });
      if (lane == 0) one.write(lines, tile.first + i, tile.places[i * tile.width + mine.end]);
    }
  }
};

/// One block for each line that was sorted.
template <class D>
__global__ void write_mode_kernel(Lines lines, Integers places, WriteOne<D> one) {
  for (int64_t line = blockIdx.x; line < lines.count(); line += gridDim.x) {
    const int64_t begin = line * lines.size;
    const auto key_at = [=](int64_t k) { return key_of(one.x[lines.place(line, places[begin + k] - begin)], false); };
    EqualRun mine;
    for (int64_t end = threadIdx.x; end < lines.size; end += kThreads)
      mine = mine.best(run_ending_at(key_at, lines.size, end));
    mine = block_reduce<kThreads>(mine, [](const EqualRun& a, const EqualRun& b) { return a.best(b); });
    if (threadIdx.x == 0) one.write(lines, line, places[begin + mine.end] - begin);
  }
}

template <class T>
void mode(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices) {
  using D = sortable_t<T>;
  const Lines lines = lines_along(ctx, x.dims(), axis);
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const WriteOne<D> one{elements<const D>(x), elements<D>(out), elements<int64_t>(indices)};
  if (lines.size <= kSortTile) return sort_tiles(ctx, one.x, lines, false, WriteMode<D>{one});
  const DeviceSort<D, Lines> sorted(ctx, one.x, lines, false);
  launch(ctx, write_mode_kernel<D>, grid_for(lines.count() * kThreads, kThreads), kThreads, lines, sorted.places(),
         one);
}

}  // namespace

void register_sort(int backend) {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("argsort", backend, dtype_of<T>, &argsort<T>);
    register_kernel("topk", backend, dtype_of<T>, &topk<T>);
    register_kernel("kthvalue", backend, dtype_of<T>, &kthvalue<T>);
    register_kernel("mode", backend, dtype_of<T>, &mode<T>);
  });
}

}  // namespace shard::cuda
