// nanmedian on CUDA: the elements in the middle of those that are numbers.
#include <string>
#include <vector>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/device_sort.cuh"
#include "shard/kernels/cuda/select.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// The elements that are reduced together are a line, along any dims.
struct ReducedLines {
  Strided<1> kept, reduced;
  int64_t number = 1, size = 1;
  int inner = 1;

  __host__ __device__ int64_t count() const { return number; }
  __device__ int64_t place(int64_t line, int64_t k) const {
    int64_t at[1], in_line[1];
    kept.locate(line, at);
    if (k >> 31 == 0) reduced.locate(static_cast<uint32_t>(k), in_line);
    else reduced.locate(k, in_line);
    return at[0] + in_line[0];
  }
};

/// All dims are reduced where `axis` is empty.
ReducedLines reduced_lines(const OpContext& ctx, const Dims& dims, const IntArray& axis) {
  std::vector<bool> is_reduced(kMaxRank, axis.empty());
  for (const int64_t a : axis) is_reduced[static_cast<size_t>(normalize_axis(ctx.op, "axis", a, dims.rank()))] = true;
  const Dims strides = broadcast_strides(dims);
  ReducedLines lines{};
  lines.number = lines.size = 1;
  for (int d = 0; d < dims.rank(); ++d) {
    const bool reduced = is_reduced[static_cast<size_t>(d)];
    (reduced ? lines.reduced : lines.kept).append(dims[d], {strides[d]});
    (reduced ? lines.size : lines.number) *= dims[d];
  }
  return lines;
}

#include "shard/kernels/formulas/median.inc"

/// Writes the median of a line of which some elements are numbers, and where it is.
template <class D>
struct WriteMedian {
  const D* x;
  bool two;  // the mean of the two in the middle where they are even in number
  D* out;
  int64_t* places;

  /// Whether the mean of two elements is taken, of `numbers` ones.
  __device__ bool is_mean(int64_t numbers) const { return two && numbers != 0 && numbers % 2 == 0; }
  /// The place of the lower one in the middle, and that of the next one where their mean is taken. Without numbers, `low` is -1.
  __device__ void write(const ReducedLines& lines, int64_t line, int64_t low, int64_t high) const {
    if (low < 0) {
      if constexpr (!std::is_integral_v<D>) out[line] = store<D>(static_cast<math_t<D>>(NAN));
    } else if (low == high) {
      out[line] = x[lines.place(line, low)];
    } else {
      out[line] = store<D>(mean_of(load(x[lines.place(line, low)]), load(x[lines.place(line, high)])));
    }
    places[two ? 2 * line : line] = low;
    if (two) places[2 * line + 1] = high;
  }
  /// Of a sorted line: place_at(i) is the place of its element i.
  template <class PlaceAt>
  __device__ void write_sorted(const ReducedLines& lines, int64_t line, const PlaceAt& place_at) const {
    int64_t numbers = lines.size;
    if constexpr (!std::is_integral_v<D>) {  // NaNs are last
      int64_t first = 0;
      while (first < numbers) {
        const int64_t middle = first + (numbers - first) / 2;
        if (is_nan(x[lines.place(line, place_at(middle))])) numbers = middle;
        else first = middle + 1;
      }
    }
    if (numbers == 0) return write(lines, line, -1, -1);
    const int64_t low = place_at((numbers - 1) / 2);
    write(lines, line, low, is_mean(numbers) ? place_at(numbers / 2) : low);
  }
  __device__ void operator()(const ReducedLines& lines, const SortedTile<Key<D>>& tile) const {
    for (int i = static_cast<int>(threadIdx.x); i < tile.lines && tile.first + i < lines.count(); i += kSortThreads) {
      const uint32_t* const places = tile.places + i * tile.width;
      write_sorted(lines, tile.first + i, [=](int64_t k) { return int64_t{places[k]}; });
    }
  }
};

template <class D>
__global__ void write_medians_kernel(ReducedLines lines, Integers places, WriteMedian<D> finish) {
  for (int64_t line = grid_first<int64_t>(); line < lines.count(); line += grid_step<int64_t>()) {
    const int64_t begin = line * lines.size;
    finish.write_sorted(lines, line, [=](int64_t k) { return places[begin + k] - begin; });
  }
}

/// A block selects from each line.
template <class D>
__global__ void __launch_bounds__(kSortThreads) select_medians_kernel(ReducedLines lines, WriteMedian<D> finish) {
  const auto place_of = [&](int64_t line, int64_t rank) {
    const Ranked<Key<D>> found = find_rank(finish.x, lines, line, 0, lines.size, false, rank);
    return find_equal(finish.x, lines, line, found.key, rank - found.before);
  };
  for (int64_t line = blockIdx.x; line < lines.count(); line += gridDim.x) {
    int64_t mine = 0;
    for (int64_t k = threadIdx.x; k < lines.size; k += kSortThreads)
      mine += is_nan(finish.x[lines.place(line, k)]) ? 0 : 1;
    const int64_t numbers = block_reduce<kSortThreads>(mine, [](int64_t a, int64_t b) { return a + b; });
    int64_t low = -1, high = -1;
    if (numbers != 0) low = high = place_of(line, (numbers - 1) / 2);
    if (finish.is_mean(numbers)) high = place_of(line, numbers / 2);
    if (threadIdx.x == 0) finish.write(lines, line, low, high);
  }
}

template <class T>
void nanmedian(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, const std::string& mode,
               DenseTensor& out, DenseTensor& medians) {
  using D = device_t<T>;
  if (out.numel() == 0) return;
  const ReducedLines lines = reduced_lines(ctx, x.dims(), axis);
  const DeviceScope scope(out.device().index);
  const WriteMedian<D> finish{elements<const D>(x), mode == "avg", elements<D>(out), elements<int64_t>(medians)};
  if (lines.size <= kSortTile) return sort_tiles(ctx, finish.x, lines, false, finish);
  if (blocks_select(lines)) {
    launch(ctx, select_medians_kernel<D>, grid_for(lines.count() * kSortThreads, kSortThreads), kSortThreads, lines,
           finish);
    return;
  }
  const DeviceSort<D, ReducedLines> sorted(ctx, finish.x, lines, false);
  launch(ctx, write_medians_kernel<D>, grid_for(lines.count(), kThreads), kThreads, lines, sorted.places(), finish);
}

}  // namespace

void register_nanmedian(int backend) {
  for_types(NumberTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("nanmedian", backend, dtype_of<T>, &nanmedian<T>); });
}

}  // namespace shard::cuda
