// Counts of elements on CUDA: bincount, which allocates its output after a wait for the device, and histogram. Sums of weights are in
// an order that only data determine.
#include <bit>

#include "shard/kernels/cuda/compaction.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/device_sort.cuh"
#include "shard/kernels/registry.h"
#include "shard/meta/check.h"

namespace shard::cuda {
namespace {

constexpr int kSharedBins = 4096;  // more of them are counted in the memory of the device

using Count = unsigned long long;  // what CUDA adds atomically

/// Counts bin_of(i), for each i below `count`, in `bins` bins; negative ones are in none. Blocks have counts of their own if `own`.
template <bool own, class BinOf>
__global__ void count_kernel(BinOf bin_of, int64_t count, int64_t bins, Count* out) {
  SHARD_SHARED(counts, unsigned[own ? kSharedBins : 1]);
  if constexpr (own) {
    for (int64_t b = threadIdx.x; b < bins; b += kThreads) counts[b] = 0;
    __syncthreads();
  }
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t bin = bin_of(i);
    if (bin < 0) continue;
    if constexpr (own) atomicAdd(&counts[bin], 1u);
    else atomicAdd(&out[bin], Count{1});
  }
  if constexpr (own) {
    __syncthreads();
    for (int64_t b = threadIdx.x; b < bins; b += kThreads) {
      if (counts[b] != 0) atomicAdd(&out[b], Count{counts[b]});
    }
  }
}

/// `out` is int64, one for each bin.
template <class BinOf>
void count_bins(const OpContext& ctx, const BinOf& bin_of, int64_t count, const DenseTensor& out) {
  fill_zeros(out);
  if (count == 0 || out.numel() == 0) return;
  const bool own = out.numel() <= kSharedBins && out.numel() <= count;
  launch(ctx, own ? count_kernel<true, BinOf> : count_kernel<false, BinOf>, grid_for(count, kThreads), kThreads, bin_of,
         count, out.numel(), static_cast<Count*>(out.raw()));
}

/// The largest index and 1, at `most`; those outside of the range are reported.
__global__ void most_kernel(Indices x, int64_t count, IndexCheck check, Count* most) {
  Count mine = 0;
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t value = x[i];
    if (check.admits(i, value)) mine = max(mine, static_cast<Count>(value) + 1);
  }
  mine = block_reduce<kThreads>(mine, [](Count a, Count b) { return max(a, b); });
  if (threadIdx.x == 0) atomicMax(most, mine);
}

/// The number of bins. Waits for the device, and throws the error of a wrong index.
int64_t bins_of(const OpContext& ctx, const DenseTensor& x, int64_t least, DType dtype) {
  if (x.numel() == 0) return least;
  const IndexCheck check(ctx, 0, "x", x, 0, meta::most_rows(x.dtype(), 1, dtype));
  const Scratch memory(sizeof(Count));
  auto* const most = static_cast<Count*>(memory.data());
  cuda::check(cudaMemsetAsync(most, 0, sizeof(Count), stream()), "cudaMemsetAsync");
  launch(ctx, most_kernel, grid_for(x.numel(), kThreads), kThreads, Indices(x), x.numel(), check, most);
  return std::max(least, wait_for_number(static_cast<const int64_t*>(memory.data())));
}

struct IndexBin {
  Indices x;
  __device__ int64_t operator()(int64_t i) const { return x[i]; }
};

/// The first of sorted keys that is not below a key.
template <class K>
__device__ int64_t first_not_below(const K* keys, int64_t count, K key) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// The sums of weights of each bin in double, by a warp for each. `D` is the type of indices, of which keys are sorted.
template <class D, class Weight, class Out>
__global__ void sum_bins_kernel(const Key<D>* keys, Integers places, int64_t count, const Weight* weights, int64_t bins,
                                Out* out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t bin = grid_first<int64_t>() / kWarp; bin < bins; bin += grid_step<int64_t>() / kWarp) {
    const Key<D> key = key_of(static_cast<D>(bin), false);
    const bool is_last = key == static_cast<Key<D>>(-1);  // there is no key above it
    const int64_t first = first_not_below(keys, count, key),
                  end = is_last ? count : first_not_below(keys, count, static_cast<Key<D>>(key + 1));
    double sum = 0;
    for (int64_t i = first + lane; i < end; i += kWarp) sum += static_cast<double>(weights[places[i]]);
    sum = warp_reduce(sum, [](double a, double b) { return a + b; });
    if (lane == 0) out[bin] = static_cast<Out>(sum);
  }
}

template <class D, class Weight, class Out>
void sum_bins_as(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weights, const DenseTensor& out) {
  const DeviceSort<D, Lines> sorted(ctx, elements<const D>(x), {1, x.numel(), 1}, false);
  launch(ctx, sum_bins_kernel<D, Weight, Out>, grid_for(out.numel() * kWarp, kThreads), kThreads, sorted.keys(),
         sorted.places(), x.numel(), elements<const Weight>(weights), out.numel(), elements<Out>(out));
}

template <class D>
void sum_bins(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weights, const DenseTensor& out) {
  switch (weights.dtype()) {
    case DType::float32: return sum_bins_as<D, float, float>(ctx, x, weights, out);
    case DType::float64: return sum_bins_as<D, double, double>(ctx, x, weights, out);
    case DType::int32: return sum_bins_as<D, int32_t, double>(ctx, x, weights, out);
    default: return sum_bins_as<D, int64_t, double>(ctx, x, weights, out);
  }
}

template <class D>
void bincount(const OpContext& ctx, const DenseTensor& x, const DenseTensor& weights, const Scalar& minlength,
              DenseTensor& out) {
  const DeviceScope scope(x.device().index);
  const bool weighted = weights.defined();
  const DType dtype = !weighted ? DType::int64 : weights.dtype() == DType::float32 ? DType::float32 : DType::float64;
  const int64_t size = bins_of(ctx, x, minlength.to<int64_t>(), dtype);
  out = DenseTensor::allocate(x.device(), {Dims{size}, dtype});
  if (!weighted) return count_bins(ctx, IndexBin{Indices(x)}, x.numel(), out);
  if (x.numel() == 0) return fill_zeros(out);
  if (size != 0) sum_bins<D>(ctx, x, weights, out);
}

/// Describes an element of the input of histogram that is not finite; `value` has the bits of it as a double.
struct alignas(8) NotFinite {
  const char* op;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::invalid_argument,
               "[{}] input is {} at element {}, but the range of its elements must be finite; set min and max", op,
               std::bit_cast<double>(value), place.index_text(position));
  }
};

/// The keys of the smallest and the largest element as doubles, at range[0] and range[1].
template <class D>
__global__ void range_kernel(const D* x, int64_t count, DataCheck<NotFinite> check, Count* range) {
  Count low = ~Count{0}, high = 0;
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const auto value = static_cast<double>(load(x[i]));
    if (!(fabs(value) <= 1.7976931348623157e308)) {
      int64_t bits;
      memcpy(&bits, &value, sizeof(bits));
      check.report(i, bits);
      continue;
    }
    const Count key = key_of(value, false);
    low = min(low, key);
    high = max(high, key);
  }
  low = block_reduce<kThreads>(low, [](Count a, Count b) { return min(a, b); });
  high = block_reduce<kThreads>(high, [](Count a, Count b) { return max(a, b); });
  if (threadIdx.x != 0) return;
  atomicMin(&range[0], low);
  atomicMax(&range[1], high);
}

/// The number with such a key.
__device__ inline double number_of(Count key) {
  const Count bits = key >> 63 != 0 ? key ^ Count { 1 } << 63 : ~key;
  double number;
  memcpy(&number, &bits, sizeof(number));
  return number;
}

template <class D>
struct RangeBin {
  const D* x;
  double low, high;
  const Count* range;  // of the elements, which are then used instead; else null
  int64_t bins;

  __device__ int64_t operator()(int64_t i) const {
    double first = range == nullptr ? low : number_of(range[0]), last = range == nullptr ? high : number_of(range[1]);
    if (first == last) {
      const double step = max(1.0, fabs(first) * 0x1p-51);  // as large as a rounding of a large number
      first -= step;
      last += step;
    }
    const auto value = static_cast<double>(load(x[i]));
    if (!(value >= first && value <= last)) return -1;
    const auto count = static_cast<double>(bins);
    double at = (value - first) * count / (last - first);
    if (!(fabs(at) <= 1.7976931348623157e308)) at = (value / 2 - first / 2) / (last / 2 - first / 2) * count;
    return at < count ? static_cast<int64_t>(at) : bins - 1;
  }
};

template <class T>
void histogram(const OpContext& ctx, const DenseTensor& input, int64_t bins, int min, int max, DenseTensor& out) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const Scratch memory(2 * sizeof(Count));
  auto* const range = static_cast<Count*>(memory.data());
  RangeBin<D> bin_of{elements<const D>(input), static_cast<double>(min), static_cast<double>(max), nullptr, bins};
  if (min == max && input.numel() > 0) {
    check(cudaMemsetAsync(range, 0xFF, sizeof(Count), stream()), "cudaMemsetAsync");
    check(cudaMemsetAsync(range + 1, 0, sizeof(Count), stream()), "cudaMemsetAsync");
    const DataCheck<NotFinite> finite(NotFinite{ctx.op, ArgumentPlace(ctx, 0, input)});
    launch(ctx, range_kernel<D>, grid_for(input.numel(), kThreads), kThreads, bin_of.x, input.numel(), finite, range);
    bin_of.range = range;
  }
  count_bins(ctx, bin_of, input.numel(), out);
}

}  // namespace

void register_counting(int backend) {
  register_kernel("bincount", backend, DType::int32, &bincount<int32_t>);
  register_kernel("bincount", backend, DType::int64, &bincount<int64_t>);
  for_types(NumberTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("histogram", backend, dtype_of<T>, &histogram<T>); });
}

}  // namespace shard::cuda
