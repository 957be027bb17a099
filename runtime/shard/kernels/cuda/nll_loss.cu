// nll_loss and its gradient on CUDA. Sums are those of blocks of labels, which a second kernel adds up.
#include <algorithm>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/labels.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// Labels [batch, places] of an input [batch, classes, places], and what each class weighs.
template <class T>
struct Labels {
  Indices label;
  int64_t count, classes, places;
  const T* weight;  // null where all weigh 1
  ClassCheck check;

  Labels(const OpContext& ctx, const Dims& input, const DenseTensor& label, const DenseTensor& weight,
         int64_t ignore_index)
      : label(label), count(label.numel()), classes(input[1]), places(input.numel(2, input.rank())),
        weight(weight.defined() ? elements<const T>(weight) : nullptr),
        check(ctx, 1, label, input[1], ignore_index, label_outside_text) {}

  /// The element of the input to which label `i`, of class `at`, belongs.
  __device__ int64_t place_of(int64_t i, int64_t at) const { return (i / places * classes + at) * places + i % places; }
  __device__ math_t<T> weight_of(int64_t at) const { return weight == nullptr ? math_t<T>(1) : load(weight[at]); }
};

/// The sums of losses and of weights.
struct LossSums {
  double loss, weight;
};
struct AddLosses {
  __device__ LossSums operator()(const LossSums& a, const LossSums& b) const {
    return {a.loss + b.loss, a.weight + b.weight};
  }
};

/// Writes the loss of each label to `out`, or the sums of each block to `sums`; the other is null.
template <class T>
__global__ void losses_kernel(Labels<T> labels, const T* input, T* out, LossSums* sums) {
  using M = math_t<T>;
  LossSums mine{0, 0};
  for (int64_t i = grid_first<int64_t>(); i < labels.count; i += grid_step<int64_t>()) {
    const int64_t at = labels.label[i];
    M weight = 0, loss = 0;
    if (labels.check.admits(i, at)) {
      weight = labels.weight_of(at);
      loss = -weight * load(input[labels.place_of(i, at)]);
    }
    if (out != nullptr) out[i] = store<T>(loss);
    mine.loss += static_cast<double>(loss);
    mine.weight += static_cast<double>(weight);
  }
  if (sums == nullptr) return;
  const LossSums all = block_reduce<kThreads>(mine, AddLosses{});
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

/// One block adds up the sums of all.
__global__ void add_losses_kernel(const LossSums* sums, int64_t count, LossSums* total) {
  LossSums mine{0, 0};
  for (int64_t i = threadIdx.x; i < count; i += kThreads) mine = AddLosses{}(mine, sums[i]);
  const LossSums all = block_reduce<kThreads>(mine, AddLosses{});
  if (threadIdx.x == 0) *total = all;
}

/// One thread.
template <class T>
__global__ void store_losses_kernel(const LossSums* total, bool divides, T* out, math_t<T>* total_weight) {
  const LossSums all = *total;
  *out = round_to<T>(divides && all.weight != 0 ? all.loss / all.weight : all.loss);
  *total_weight = static_cast<math_t<T>>(all.weight);
}

/// The scratch of sums is small, and so are their second sums.
unsigned blocks_of_sums(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(grid_for(count, kThreads * 4), int64_t{multiprocessors()} * 4));
}

template <class T>
void nll_loss(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label, const DenseTensor& weight,
              int64_t ignore_index, const std::string& reduction, DenseTensor& out, DenseTensor& total_weight) {
  using D = device_t<T>;
  const bool keep = reduction == "none";
  const DeviceScope scope(total_weight.device().index);
  const Labels<D> labels(ctx, input.dims(), label, weight, ignore_index);
  const D* const from = elements<const D>(input);
  if (keep) {
    fill_zeros(total_weight);
    if (labels.count != 0)
      launch(ctx, losses_kernel<D>, grid_for(labels.count, kThreads), kThreads, labels, from, elements<D>(out),
             nullptr);
    return;
  }
  const unsigned blocks = blocks_of_sums(labels.count);
  const Scratch memory(blocks * sizeof(LossSums));
  auto* const sums = static_cast<LossSums*>(memory.data());
  launch(ctx, losses_kernel<D>, blocks, kThreads, labels, from, nullptr, sums);
  DenseTensor total = DenseTensor::allocate(out.device(), {Dims{2}, DType::float64});
  auto* const both = reinterpret_cast<LossSums*>(total.data<double>());
  launch(ctx, add_losses_kernel, 1, kThreads, sums, blocks, both);
  ctx.all_reduce(total, ReduceType::sum);
  launch(ctx, store_losses_kernel<D>, 1, 1, both, reduction == "mean", elements<D>(out),
         elements<math_t<D>>(total_weight));
}

/// The gradients of the elements that labels name; the others are zeros already.
template <class T>
__global__ void nll_grad_kernel(Labels<T> labels, const math_t<T>* total_weight, const T* out_grad, bool of_each,
                                bool divides, T* input_grad) {
  using M = math_t<T>;
  const M total = divides ? *total_weight : M(1), divisor = total != 0 ? total : M(1);
  for (int64_t i = grid_first<int64_t>(); i < labels.count; i += grid_step<int64_t>()) {
    const int64_t at = labels.label[i];
    if (!labels.check.admits(i, at)) continue;
    const M grad = load(out_grad[of_each ? i : 0]);
    input_grad[labels.place_of(i, at)] = store<T>(-grad * labels.weight_of(at) / divisor);
  }
}

template <class T>
void nll_loss_grad(const OpContext& ctx, const DenseTensor&, const DenseTensor& label, const DenseTensor& weight,
                   const DenseTensor& total_weight, const DenseTensor& out_grad, int64_t ignore_index,
                   const std::string& reduction, DenseTensor& input_grad) {
  using D = device_t<T>;
  const DeviceScope scope(input_grad.device().index);
  const Labels<D> labels(ctx, input_grad.dims(), label, weight, ignore_index);
  fill_zeros(input_grad);
  if (labels.count == 0) return;
  launch(ctx, nll_grad_kernel<D>, grid_for(labels.count, kThreads), kThreads, labels,
         elements<const math_t<D>>(total_weight), elements<const D>(out_grad), reduction == "none", reduction == "mean",
         elements<D>(input_grad));
}

}  // namespace

void register_nll_loss(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("nll_loss", backend, dtype_of<T>, &nll_loss<T>);
    register_kernel("nll_loss_grad", backend, dtype_of<T>, &nll_loss_grad<T>);
  });
}

}  // namespace shard::cuda
