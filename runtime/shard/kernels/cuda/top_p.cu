// top_p_sampling on CUDA: a category of each row from the likeliest ones. A row is sorted, and a warp looks for the one that is drawn.
#include <bit>

#include "shard/kernels/cuda/block_sort.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/device_sort.cuh"
#include "shard/kernels/cuda/philox.cuh"
#include "shard/kernels/cuda/scan.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kThreads = 256;

/// Describes an element that is not what it must be; `value` has the bits of it as a double.
struct alignas(8) WrongElement {
  const char *op, *name, *what;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::invalid_argument,
               "[{}] argument '{}' has the element {}, which must be {} (element {} of {})", op, name,
               std::bit_cast<double>(value), what, place.index_text(position), place.global_text());
  }
};

/// Checks that elements are numbers and, unless `any_number`, finite and 0 or more.
template <class D>
__global__ void check_elements_kernel(const D* x, int64_t count, bool any_number, DataCheck<WrongElement> check) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const auto value = static_cast<double>(load(x[i]));
    if (any_number ? value == value : value >= 0 && value <= 1.7976931348623157e308) continue;
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    check.report(i, bits);
  }
}
template <class D>
void check_elements(const OpContext& ctx, size_t input, const char* name, const DenseTensor& x, bool any_number) {
  if (x.numel() == 0) return;
  const DataCheck<WrongElement> check(
      WrongElement{ctx.op, name, any_number ? "a number" : "finite and 0 or more", ArgumentPlace(ctx, input, x)});
  launch(ctx, check_elements_kernel<D>, grid_for(x.numel(), kThreads), kThreads, elements<const D>(x), x.numel(),
         any_number, check);
}

/// Describes a row of x without a probability above 0.
struct alignas(8) NothingToDraw {
  const char* op;
  ArgumentPlace x;

  [[noreturn]] void fail(int64_t position, int64_t) const {
    fail_check(ErrorCode::invalid_argument,
               "[{}] the row of x that begins at element {} of {} has no probability above 0, so nothing can be drawn",
               op, x.index_text(position), x.global_text());
  }
};

/// One warp for each row.
template <class D>
__global__ void check_chances_kernel(const D* x, int64_t rows, int64_t categories, DataCheck<NothingToDraw> check) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t row = grid_first<int64_t>() / kWarp; row < rows; row += grid_step<int64_t>() / kWarp) {
    bool has_one = false;
    for (int64_t k = lane; !has_one && k < categories; k += kWarp) has_one = load(x[row * categories + k]) > 0;
    has_one = __any_sync(kAllLanes, has_one);
    if (lane == 0 && !has_one) check.report(row * categories, 0);
  }
}

template <class D>
struct Draw {
  const D *x, *ps, *threshold;  // the last one may be null
  int64_t categories;
  RandomKey key;
  int64_t first_row;  // of the whole tensor
  D* out;
  int64_t* ids;

  __device__ double probability(int64_t row, int64_t category) const { return load(x[row * categories + category]); }

  /// Draws from a row of which place_at(i) is the i-th likeliest category, and `total` the sum of all. All lanes of a warp call it.
  template <class PlaceAt>
  __device__ void draw(int64_t row, double total, const PlaceAt& place_at) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    PhiloxWords words(key);
    const auto element = 4 * static_cast<uint64_t>(first_row + row);
    const uint32_t high = words.at(element), low = words.at(element + 1);
    const double fraction = static_cast<double>(static_cast<int64_t>((uint64_t{high} << 32 | low) >> 11)) * 0x1p-53;
    const double most = load(ps[row]), least = threshold == nullptr ? 0.0 : static_cast<double>(load(threshold[row]));
    const double end = fraction * (total < most ? total : most);
    int64_t taken = 0;  // the number of categories up to the one that is drawn
    double sum = 0;     // of those before these 32
    for (int64_t begin = 0; begin < categories; begin += kWarp) {
      const int64_t i = begin + lane;
      const double p = i < categories ? probability(row, place_at(i)) : 0.0;
      const double through = warp_scan(p, [](double a, double b) { return a + b; });
      const double below = shuffle_up(through, 1);
      const double before = lane == 0 ? sum : sum + below;
      const bool takes = i == 0 || (i < categories && before <= end && p >= least && p != 0);
      const unsigned lanes = __ballot_sync(kAllLanes, takes);
      taken = begin + __ffs(static_cast<int>(~lanes)) - 1;  // the first that is not taken, of these
      if (lanes != kAllLanes) break;
      taken = begin + kWarp;
      sum += shuffle_from(through, kWarp - 1);
    }
    if (lane != 0) return;
    const int64_t id = taken == 0 ? 0 : place_at(taken - 1);
    ids[row] = id;
    out[row] = categories == 0 ? store<D>(math_t<D>(0)) : x[row * categories + id];
  }

  /// A warp for each row of a tile.
  __device__ void operator()(const Lines& lines, const SortedTile<Key<D>>& tile) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < tile.lines && tile.first + i < lines.count();
         i += kTileThreads / kWarp) {
      double total = 0;
      for (int64_t k = lane; k < categories; k += kWarp) total += probability(tile.first + i, k);
      total = warp_reduce(total, [](double a, double b) { return a + b; });
      const uint32_t* const places = tile.places + i * tile.width;
      draw(tile.first + i, total, [=](int64_t k) { return int64_t{places[k]}; });
    }
  }
};

/// A block for each row that was sorted.
template <class D>
__global__ void draw_kernel(Lines lines, Places places, Draw<D> call) {
  for (int64_t row = blockIdx.x; row < lines.count(); row += gridDim.x) {
    double total = 0;
    for (int64_t k = threadIdx.x; k < lines.size; k += kThreads) total += call.probability(row, k);
    total = block_reduce<kThreads>(total, [](double a, double b) { return a + b; });
    const int64_t begin = row * lines.size;
    if (threadIdx.x < kWarp) call.draw(row, total, [=](int64_t k) { return places[begin + k] - begin; });
  }
}

template <class T>
void top_p_sampling(const OpContext& ctx, const DenseTensor& x, const DenseTensor& ps, const DenseTensor& threshold,
                    int seed, RandomKey drawn, DenseTensor& out, DenseTensor& ids) {
  using D = device_t<T>;
  const Lines rows{x.dims()[0], x.dims()[1], 1};
  if (rows.count() == 0) return;
  const DeviceScope scope(out.device().index);
  check_elements<D>(ctx, 0, "x", x, false);
  check_elements<D>(ctx, 1, "ps", ps, false);
  if (threshold.defined()) check_elements<D>(ctx, 2, "threshold", threshold, true);
  launch(ctx, check_chances_kernel<D>, grid_for(rows.count() * kWarp, kThreads), kThreads, elements<const D>(x),
         rows.count(), rows.size, DataCheck<NothingToDraw>(NothingToDraw{ctx.op, ArgumentPlace(ctx, 0, x)}));
  const Draw<D> call{elements<const D>(x),
                     elements<const D>(ps),
                     threshold.defined() ? elements<const D>(threshold) : nullptr,
                     rows.size,
                     seed < 0 ? drawn : RandomKey{static_cast<uint64_t>(seed), 0},
                     ctx.input_box(0, x).begin[0],
                     elements<D>(out),
                     elements<int64_t>(ids)};
  if (rows.size <= kTile) return sort_tiles(ctx, call.x, rows, true, call);
  const DeviceSort<D, Lines> sorted(ctx, call.x, rows, true);
  launch(ctx, draw_kernel<D>, grid_for(rows.count() * kThreads, kThreads), kThreads, rows, sorted.places(), call);
}

}  // namespace

void register_top_p(int backend) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("top_p_sampling", backend, dtype_of<T>, &top_p_sampling<T>); });
}

}  // namespace shard::cuda
