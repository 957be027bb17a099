// CTC on CUDA: the loss, by sums over all paths in log space, which are computed in float64, and its gradient, as on the CPU.
#include <cmath>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kCtcThreads = 128;

/// Describes a label that is no class, or the blank one.
struct alignas(8) LabelRange {
  const char* op;
  int64_t classes;
  int64_t blank;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range,
               "[{}] label is {} at element {}, but must be from 0 to {}, and not blank, which is {}; elements beyond "
               "labels_length are not read",
               op, value, place.index_text(position), classes - 1, blank);
  }
};

/// The logarithm of probability 0.
__device__ double never() { return -INFINITY; }

__device__ double log_sum(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  return most == never() ? most : most + log1p(exp(least - most));
}

/// The arguments of warpctc: logits [time, batch, classes], label [batch, width]. A sequence has places: its labels, with a blank around
/// each of them.
template <class D>
struct Ctc {
  const D* logits;
  Indices label, logits_length, labels_length;
  int64_t time, batch, classes, width;
  int64_t blank;
  double* scratch;  // of each sequence: divisors of steps, sums of steps and places, two rows of places
  D *loss, *gradient;

  __host__ __device__ int64_t most_places() const { return 2 * width + 1; }
  __host__ __device__ int64_t scratch_size() const { return time + (time + 2) * most_places(); }
};

/// One sequence, whose places and classes the threads of a block share.
template <class D>
struct Sequence {
  const Ctc<D>& call;
  int64_t number, length, count;
  double *divisors, *sums, *row, *next;

  __device__ Sequence(const Ctc<D>& ctc, int64_t sequence)
      : call(ctc), number(sequence), length(ctc.logits_length[sequence]), count(ctc.labels_length[sequence]),
        divisors(ctc.scratch + sequence * ctc.scratch_size()), sums(divisors + ctc.time),
        row(sums + ctc.time * ctc.most_places()), next(row + ctc.most_places()) {}

  __device__ int64_t places() const { return 2 * count + 1; }
  __device__ int64_t class_of(int64_t place) const {
    return place % 2 == 0 ? call.blank : call.label[number * call.width + place / 2];
  }
  /// Whether the blank before a label may be left out: between labels that differ.
  __device__ bool skips_to(int64_t place) const {
    return place % 2 == 1 && place > 1 && class_of(place) != class_of(place - 2);
  }
  __device__ double logit(int64_t step, int64_t c) const {
    return static_cast<double>(load(call.logits[(step * call.batch + number) * call.classes + c]));
  }
  __device__ double log_probability(int64_t step, int64_t c) const { return logit(step, c) - divisors[step]; }

  /// Whether the labels, with a blank between equal ones, are no more than the steps.
  __device__ bool fits() const {
    int64_t needed = count;
    for (int64_t i = 1; i < count; ++i) needed += class_of(2 * i + 1) == class_of(2 * i - 1) ? 1 : 0;
    return needed <= length;
  }

  /// The logarithms of sums of exponentials, a warp for each step.
  __device__ void find_divisors() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int64_t step = threadIdx.x / kWarp; step < length; step += kCtcThreads / kWarp) {
      double most = never(), sum = 0;
      for (int64_t c = lane; c < call.classes; c += kWarp) most = fmax(most, logit(step, c));
      most = warp_reduce(most, [](double a, double b) { return fmax(a, b); });
      for (int64_t c = lane; c < call.classes; c += kWarp) sum += exp(logit(step, c) - most);
      sum = warp_reduce(sum, [](double a, double b) { return a + b; });
      if (lane == 0) divisors[step] = most + log(sum);
    }
  }
  /// Sums over the paths that end at each place of each step.
  __device__ void sum_forward() const {
    for (int64_t step = 0; step < length; ++step) {
      double* const to = sums + step * call.most_places();
      const double* const before = to - call.most_places();
      for (int64_t s = threadIdx.x; s < places(); s += kCtcThreads) {
        double sum = step > 0 ? before[s] : s < 2 ? 0 : never();
        if (step > 0 && s > 0) sum = log_sum(sum, before[s - 1]);
        if (step > 0 && skips_to(s)) sum = log_sum(sum, before[s - 2]);
        to[s] = sum + log_probability(step, class_of(s));
      }
      __syncthreads();
    }
  }
  __device__ double total() const {
    const double* const last = sums + (length - 1) * call.most_places();
    return count == 0 ? last[0] : log_sum(last[places() - 1], last[places() - 2]);
  }
  /// The gradient of a step: probabilities minus the share of the paths that have the class at that step, whose sums go on as in `row`.
  __device__ void write_gradient(int64_t step, double all) const {
    const double* const before = sums + step * call.most_places();
    for (int64_t c = threadIdx.x; c < call.classes; c += kCtcThreads) {
      double value = exp(log_probability(step, c));
      for (int64_t s = 0; s < places(); ++s) {
        if (class_of(s) == c) value -= exp(before[s] + row[s] - all);
      }
      call.gradient[(step * call.batch + number) * call.classes + c] = store<D>(static_cast<math_t<D>>(value));
    }
  }
  /// Sums over the paths that go on from each place after the step before, from those after this one.
  __device__ void sum_backward(int64_t step) {
    for (int64_t s = threadIdx.x; s < places(); s += kCtcThreads) {
      const auto on = [&](int64_t place) { return row[place] + log_probability(step, class_of(place)); };
      double sum = on(s);
      if (s + 1 < places()) sum = log_sum(sum, on(s + 1));
      if (s + 2 < places() && skips_to(s + 2)) sum = log_sum(sum, on(s + 2));
      next[s] = sum;
    }
    __syncthreads();
    double* const after = row;
    row = next;
    next = after;
  }
  __device__ void differentiate(double all) {
    for (int64_t s = threadIdx.x; s < places(); s += kCtcThreads) row[s] = s + 2 < places() ? never() : 0;
    __syncthreads();
    for (int64_t step = length - 1; step >= 0; --step) {
      write_gradient(step, all);
      sum_backward(step);
    }
  }
};

/// Whether the lengths and labels of a sequence are right. Every thread of the block gets the answer.
template <class D>
__device__ bool is_right(const Ctc<D>& call, int64_t sequence, const DataCheck<LengthRange>& steps,
                         const DataCheck<LengthRange>& counts, const DataCheck<LabelRange>& labels) {
  const int64_t length = call.logits_length[sequence], count = call.labels_length[sequence];
  const bool bad_length = length < 0 || length > call.time, bad_count = count < 0 || count > call.width;
  if (threadIdx.x == 0 && bad_length) steps.report(sequence, length);
  if (threadIdx.x == 0 && bad_count) counts.report(sequence, count);
  bool wrong = bad_length || bad_count;
  for (int64_t i = threadIdx.x; !bad_count && i < count; i += kCtcThreads) {
    const int64_t value = call.label[sequence * call.width + i];
    if (value >= 0 && value < call.classes && value != call.blank) continue;
    labels.report(sequence * call.width + i, value);
    wrong = true;
  }
  return __syncthreads_or(wrong) == 0;
}

/// One block for each sequence.
template <class D>
__global__ void ctc_kernel(Ctc<D> call, DataCheck<LengthRange> steps, DataCheck<LengthRange> counts,
                           DataCheck<LabelRange> labels) {
  for (int64_t number = blockIdx.x; number < call.batch; number += gridDim.x) {
    const bool right = is_right(call, number, steps, counts, labels);
    Sequence<D> sequence(call, number);
    const bool has_paths = right && sequence.length > 0 && sequence.fits();
    for (int64_t step = has_paths ? sequence.length : 0; step < call.time; ++step) {
      for (int64_t c = threadIdx.x; c < call.classes; c += kCtcThreads)
        call.gradient[(step * call.batch + number) * call.classes + c] = store<D>(math_t<D>(0));
    }
    if (!has_paths) {
      if (threadIdx.x == 0) call.loss[number] = store<D>(math_t<D>(0));
      continue;
    }
    sequence.find_divisors();
    __syncthreads();
    sequence.sum_forward();
    const double all = sequence.total();
    if (threadIdx.x == 0) call.loss[number] = store<D>(static_cast<math_t<D>>(-all));
    sequence.differentiate(all);
  }
}

template <class T>
void warpctc(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label,
             const DenseTensor& logits_length, const DenseTensor& labels_length, int blank, DenseTensor& loss,
             DenseTensor& warpctcgrad) {
  using D = device_t<T>;
  const int64_t time = logits.dims()[0], batch = logits.dims()[1], classes = logits.dims()[2], width = label.dims()[1];
  if (batch == 0) return;
  const DeviceScope scope(loss.device().index);
  Ctc<D> call{elements<const D>(logits),
              Indices(label),
              Indices(logits_length),
              Indices(labels_length),
              time,
              batch,
              classes,
              width,
              blank,
              nullptr,
              elements<D>(loss),
              elements<D>(warpctcgrad)};
  const Scratch scratch(static_cast<size_t>(batch * call.scratch_size()) * sizeof(double));
  call.scratch = static_cast<double*>(scratch.data());
  const DataCheck<LengthRange> steps(
      LengthRange{ctx.op, "logits_length", 0, time, ArgumentPlace(ctx, 2, logits_length)});
  const DataCheck<LengthRange> counts(
      LengthRange{ctx.op, "labels_length", 0, width, ArgumentPlace(ctx, 3, labels_length)});
  const DataCheck<LabelRange> labels(LabelRange{ctx.op, classes, blank, ArgumentPlace(ctx, 1, label)});
  launch(ctx, ctc_kernel<D>, grid_for(batch * kCtcThreads, kCtcThreads), kCtcThreads, call, steps, counts, labels);
}

template <class D>
__global__ void ctc_grad_kernel(const D* gradient, const D* loss_grad, Indices lengths, int64_t rows, int64_t batch,
                                int64_t classes, bool norm_by_times, D* out) {
  using C = math_t<D>;
  for (int64_t i = grid_first<int64_t>(); i < rows * classes; i += grid_step<int64_t>()) {
    const int64_t sequence = i / classes % batch, length = norm_by_times ? lengths[sequence] : 1;
    const C factor = load(loss_grad[sequence]) / static_cast<C>(length > 1 ? length : 1);
    out[i] = store<D>(load(gradient[i]) * factor);
  }
}

template <class T>
void warpctc_grad(const OpContext& ctx, const DenseTensor& logits_length, const DenseTensor& warpctcgrad,
                  const DenseTensor& loss_grad, bool norm_by_times, DenseTensor& logits_grad) {
  using D = device_t<T>;
  const int64_t batch = warpctcgrad.dims()[1], classes = warpctcgrad.dims()[2], rows = warpctcgrad.dims()[0] * batch;
  if (logits_grad.numel() == 0) return;
  const DeviceScope scope(logits_grad.device().index);
  launch(ctx, ctc_grad_kernel<D>, grid_for(rows * classes, kCtcThreads), kCtcThreads, elements<const D>(warpctcgrad),
         elements<const D>(loss_grad), Indices(logits_length), rows, batch, classes, norm_by_times,
         elements<D>(logits_grad));
}

}  // namespace

void register_ctc(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("warpctc", backend, dtype_of<T>, &warpctc<T>);
    register_kernel("warpctc_grad", backend, dtype_of<T>, &warpctc_grad<T>);
  });
}

}  // namespace shard::cuda
