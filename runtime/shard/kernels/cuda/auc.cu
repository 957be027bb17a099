// auc on CUDA: counts of predictions of each value, and the area under the curve that they make.
#include <bit>
#include <string>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

using Count = unsigned long long;  // what CUDA adds atomically

/// Describes an element of x that is no probability; `value` has the bits of it as a double. It is written as a C.
template <class C>
struct alignas(8) ProbabilityRange {
  const char* op;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "[{}] x is {} at element {}, but must be a probability, from 0 to 1", op,
               static_cast<C>(std::bit_cast<double>(value)), place.index_text(position));
  }
};
/// Describes a number of calls below 0.
struct alignas(8) CallsRange {
  const char* op;

  [[noreturn]] void fail(int64_t, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "[{}] stat_pos ends with {}, but must end with the number of calls, 0 or more",
               op, value);
  }
};

template <class D>
struct Predictions {
  const D* x;  // [rows, width], of which the last column counts
  int64_t rows, width;
  Indices labels;
  const float* weight;  // null, or 0 where predictions do not count
  int thresholds;

  __device__ int64_t place(int64_t row) const { return (row + 1) * width - 1; }
};

/// The counts of true and false predictions: those of `steps` calls, of which the place of this call is at *begin, and their sums, or
/// if there are no steps, only sums; and behind them the number of calls.
struct Stats {
  Count *positive, *negative;
  int64_t steps, buckets;
  int64_t* begin;

  __device__ int64_t sums() const { return steps * buckets; }
};

template <class D>
__global__ void check_probabilities_kernel(Predictions<D> predictions, DataCheck<ProbabilityRange<math_t<D>>> check) {
  for (int64_t r = grid_first<int64_t>(); r < predictions.rows; r += grid_step<int64_t>()) {
    const auto value = static_cast<double>(load(predictions.x[predictions.place(r)]));
    if (value >= 0 && value <= 1) continue;
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    check.report(predictions.place(r), bits);
  }
}

/// One thread: where the counts of this call are.
__global__ void find_place_kernel(Stats stats, DataCheck<CallsRange> check) {
  *stats.begin = 0;
  if (stats.steps == 0) return;
  const auto calls = static_cast<int64_t>(stats.positive[stats.sums() + stats.buckets]);
  if (calls < 0) check.report(0, calls);
  else *stats.begin = calls % stats.steps * stats.buckets;
}

/// The counts of the call that this one replaces are taken from the sums.
__global__ void replace_kernel(Stats stats) {
  const int64_t begin = *stats.begin;
  for (int64_t i = grid_first<int64_t>(); i < stats.buckets; i += grid_step<int64_t>()) {
    stats.positive[stats.sums() + i] -= stats.positive[begin + i];
    stats.negative[stats.sums() + i] -= stats.negative[begin + i];
    stats.positive[begin + i] = 0;
    stats.negative[begin + i] = 0;
  }
}

template <class D>
__global__ void count_predictions_kernel(Predictions<D> predictions, Stats stats) {
  using C = math_t<D>;
  if (predictions.weight != nullptr && *predictions.weight == 0) return;
  const int64_t begin = *stats.begin, most = predictions.thresholds;
  for (int64_t r = grid_first<int64_t>(); r < predictions.rows; r += grid_step<int64_t>()) {
    const int64_t kind = predictions.labels[r];
    const C value = load(predictions.x[predictions.place(r)]);
    if (kind < 0 || !(value >= 0 && value <= 1)) continue;
    const int64_t at = min(static_cast<int64_t>(value * static_cast<C>(most)), most);
    Count* const counts = kind > 0 ? stats.positive : stats.negative;
    atomicAdd(&counts[begin + at], Count{1});
    if (stats.steps > 0) atomicAdd(&counts[stats.sums() + at], Count{1});
  }
}

/// One block. The area between the curve of true over false positives and the axis, as a share of the square; each thread has
/// neighbouring buckets, the first thread the highest.
__global__ void area_kernel(Stats stats, double* area) {
  SHARD_SHARED(positives, Count[kThreads]);
  SHARD_SHARED(negatives, Count[kThreads]);
  const int64_t each = (stats.buckets + kThreads - 1) / kThreads, first = threadIdx.x * each;
  const int64_t last = min(first + each, stats.buckets);
  const Count *const positive = stats.positive + stats.sums(), *const negative = stats.negative + stats.sums();
  Count of_positive = 0, of_negative = 0;
  for (int64_t i = first; i < last; ++i) {
    of_positive += positive[stats.buckets - 1 - i];
    of_negative += negative[stats.buckets - 1 - i];
  }
  positives[threadIdx.x] = of_positive;
  negatives[threadIdx.x] = of_negative;
  __syncthreads();
  double above_positive = 0, all_positive = 0, all_negative = 0;
  for (unsigned t = 0; t < kThreads; ++t) {
    if (t == threadIdx.x) above_positive = all_positive;
    all_positive += static_cast<double>(static_cast<int64_t>(positives[t]));
    all_negative += static_cast<double>(static_cast<int64_t>(negatives[t]));
  }
  double mine = 0;
  for (int64_t i = first; i < last; ++i) {
    const double more_positive = static_cast<double>(static_cast<int64_t>(positive[stats.buckets - 1 - i])),
                 more_negative = static_cast<double>(static_cast<int64_t>(negative[stats.buckets - 1 - i]));
    mine += more_negative * (2 * above_positive + more_positive) / 2;
    above_positive += more_positive;
  }
  mine = block_reduce<kThreads>(mine, [](double a, double b) { return a + b; });
  if (threadIdx.x != 0) return;
  *area = all_positive > 0 && all_negative > 0 ? mine / all_positive / all_negative : 0;
  if (stats.steps > 0) ++stats.positive[stats.sums() + stats.buckets];
  if (stats.steps > 0) ++stats.negative[stats.sums() + stats.buckets];
}

template <class T>
void auc(const OpContext& ctx, const DenseTensor& x, const DenseTensor& label, const DenseTensor& stat_pos,
         const DenseTensor& stat_neg, const DenseTensor& ins_tag_weight, const std::string&, int num_thresholds,
         int slide_steps, DenseTensor& area, DenseTensor& stat_pos_out, DenseTensor& stat_neg_out) {
  using D = device_t<T>;
  using Range = ProbabilityRange<math_t<D>>;
  const DeviceScope scope(area.device().index);
  const Predictions<D> predictions{elements<const D>(x),
                                   x.dims()[0],
                                   x.dims()[1],
                                   Indices(label),
                                   ins_tag_weight.defined() ? elements<const float>(ins_tag_weight) : nullptr,
                                   num_thresholds};
  const Scratch begin(sizeof(int64_t));
  const Stats stats{elements<Count>(stat_pos_out), elements<Count>(stat_neg_out), slide_steps,
                    int64_t{num_thresholds} + 1, static_cast<int64_t*>(begin.data())};
  const unsigned blocks = grid_for(predictions.rows, kThreads);
  if (predictions.rows != 0) {
    launch(ctx, check_probabilities_kernel<D>, blocks, kThreads, predictions,
           DataCheck<Range>(Range{ctx.op, ArgumentPlace(ctx, 0, x)}));
  }
  copy_all(stat_pos, stat_pos_out);
  copy_all(stat_neg, stat_neg_out);
  launch(ctx, find_place_kernel, 1, 1, stats, DataCheck<CallsRange>(CallsRange{ctx.op}));
  if (slide_steps > 0) launch(ctx, replace_kernel, grid_for(stats.buckets, kThreads), kThreads, stats);
  if (predictions.rows != 0) launch(ctx, count_predictions_kernel<D>, blocks, kThreads, predictions, stats);
  launch(ctx, area_kernel, 1, kThreads, stats, elements<double>(area));
}

}  // namespace

void register_auc(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("auc", backend, dtype_of<T>, &auc<T>); });
}

}  // namespace shard::cuda
