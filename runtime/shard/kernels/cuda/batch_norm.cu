// batch_norm and its gradient on CUDA: sums of channels, then what they do to each element.
#include "shard/kernels/cpu/channels.h"
#include "shard/kernels/cuda/channels.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// x as images by channel; where channels are neighbours all places are those of one image.
ChannelShape batch_shape(const DenseTensor& x, int axis) {
  const Dims& dims = x.dims();
  ChannelShape shape{dims.numel(0, axis), dims[axis], dims.numel(axis + 1, dims.rank()), false};
  if (shape.places == 1) shape = {1, shape.channels, shape.images, true};
  split_places(shape);
  return shape;
}

/// What is done with the statistics of a channel: all of [channels].
template <class T>
struct BatchStatistics {
  using M = math_t<T>;
  const M* parts;  // of Moments; null where the given statistics are used
  PartsOfUnit of_channel;
  const M *mean, *variance;
  M *mean_out, *variance_out, *saved_mean, *saved_variance;
  ColumnNumbers<T> scale, bias;
  M momentum, epsilon;
  bool learns;
  ChannelAffine<T> affine;
};

/// A warp for each channel.
template <class T>
__global__ void use_batch_statistics(BatchStatistics<T> s, int64_t channels) {
  using M = math_t<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x / kWarp;
  for (int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; c < channels; c += step) {
    Moments<M> all{0, 0, 0};
    if (s.parts != nullptr) all = s.of_channel.of_unit(MomentSums<T>{}, s.parts, c);
    if (threadIdx.x % kWarp != 0) continue;
    const M old_mean = s.mean[c], old_variance = s.variance[c];
    M mean = old_mean, variance = old_variance;
    if (s.parts != nullptr) {
      mean = all.count == 0 ? M(NAN) : all.mean;
      variance = all.squares / all.count;
    }
    s.mean_out[c] = s.learns ? old_mean * s.momentum + mean * (M(1) - s.momentum) : old_mean;
    s.variance_out[c] = s.learns ? old_variance * s.momentum + variance * (M(1) - s.momentum) : old_variance;
    const M inverse = M(1) / ::sqrt(variance + s.epsilon);
    s.saved_mean[c] = mean;
    s.saved_variance[c] = inverse;
    M factor[1], offset[1];
    s.scale.read(c, factor);
    s.bias.read(c, offset);
    M* const table = s.affine.table + c;
    table[0] = mean;
    table[s.affine.count] = inverse * factor[0];
    table[2 * s.affine.count] = offset[0];
  }
}

/// The elements of each channel on all ranks.
double count_of_channel(const Box& box, int axis) {
  return static_cast<double>(box.global.numel(0, axis) * box.global.numel(axis + 1, box.global.rank()));
}

template <class T>
void batch_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mean, const DenseTensor& variance,
                const DenseTensor& scale, const DenseTensor& bias, bool is_test, float momentum, float epsilon,
                const std::string& data_format, bool use_global_stats, bool trainable_statistics, DenseTensor& out,
                DenseTensor& mean_out, DenseTensor& variance_out, DenseTensor& saved_mean,
                DenseTensor& saved_variance) {
  using D = device_t<T>;
  using M = math_t<D>;
  const bool given = cpu::takes_given_statistics(is_test, use_global_stats, trainable_statistics);
  const int axis = cpu::channel_axis(x, data_format);
  const ChannelShape shape = batch_shape(x, axis);
  if (shape.channels == 0) return;
  const DeviceScope scope(out.device().index);
  const int64_t channels = shape.channels, states = shape.lines() * shape.parts;
  const Scratch table(3 * sizeof(M) * static_cast<size_t>(channels)),
      parts(sizeof(Moments<M>) * static_cast<size_t>(given ? 1 : std::max<int64_t>(states, 1)));
  M* moments = static_cast<M*>(parts.data());
  const D* const from = elements<const D>(x);
  PartsOfUnit of_channel{shape.images, channels * shape.parts, shape.parts};
  if (!given) launch_sums(ctx, MomentSums<D>{{from}}, shape, moments);
  const bool combines = !given && ctx.reducer() != nullptr;
  const Scratch of_all(combines ? sizeof(Moments<M>) * static_cast<size_t>(channels) : 1);
  if (combines) {
    M* const combined = static_cast<M*>(of_all.data());
    combine_moments<D>(ctx, x.device(), moments, of_channel, count_of_channel(ctx.input_box(0, x), axis), channels,
                       combined);
    moments = combined;
    of_channel = one_part();
  }
  // With an empty batch the running statistics do not change.
  const bool learns = !given && ctx.input_box(0, x).global.numel() != 0;
  const ChannelAffine<D> affine{{from}, elements<D>(out), static_cast<M*>(table.data()), channels};
  const BatchStatistics<D> statistics{given ? nullptr : moments,
                                      of_channel,
                                      elements<const M>(mean),
                                      elements<const M>(variance),
                                      elements<M>(mean_out),
                                      elements<M>(variance_out),
                                      elements<M>(saved_mean),
                                      elements<M>(saved_variance),
                                      {scale, 1},
                                      {bias, 0},
                                      momentum,
                                      epsilon,
                                      learns,
                                      affine};
  launch(ctx, use_batch_statistics<D>, blocks_of_warps(channels), kUnitThreads, statistics, channels);
  launch_apply(ctx, affine, shape);
}

template <class T>
struct BatchGradients {
  using M = math_t<T>;
  const M* parts;  // of GradState
  PartsOfUnit of_channel;
  const M *mean, *inverse;
  ColumnNumbers<T> scale;
  M *scale_grad, *bias_grad;  // or null
  bool constants;             // mean and inverse
  M count;
  ChannelAffineGrad<T> affine;
};

/// A warp for each channel.
template <class T>
__global__ void use_batch_gradients(BatchGradients<T> s, int64_t channels) {
  using M = math_t<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x / kWarp;
  for (int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; c < channels; c += step) {
    const GradState<M> all = s.of_channel.of_unit(ChannelGradSums<T>{}, s.parts, c);
    if (threadIdx.x % kWarp != 0) continue;
    const M inverse = s.inverse[c], normal = all.normal * inverse;
    if (s.scale_grad != nullptr) s.scale_grad[c] = normal;
    if (s.bias_grad != nullptr) s.bias_grad[c] = all.plain;
    M factor[1];
    s.scale.read(c, factor);
    const M gain = inverse * factor[0], along = s.constants ? M(0) : all.plain / s.count;
    const M across = s.constants ? M(0) : normal / s.count;
    M* const table = s.affine.table + c;
    table[0] = s.mean[c];
    table[s.affine.count] = gain;
    table[2 * s.affine.count] = along * gain;
    table[3 * s.affine.count] = inverse * across * gain;
  }
}

/// The sums of the parts of channels that are here: [2, channels].
template <class T>
__global__ void sum_gradients(const math_t<T>* parts, PartsOfUnit of_channel, int64_t channels, double* sums) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x / kWarp;
  for (int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; c < channels; c += step) {
    const auto mine = of_channel.of_unit(ChannelGradSums<T>{}, parts, c);
    if (threadIdx.x % kWarp != 0) continue;
    sums[c] = static_cast<double>(mine.plain);
    sums[channels + c] = static_cast<double>(mine.normal);
  }
}
template <class T>
__global__ void store_gradients(const double* sums, int64_t channels, math_t<T>* states) {
  using M = math_t<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; c < channels; c += step) {
    const GradState<M> all{static_cast<M>(sums[c]), static_cast<M>(sums[channels + c])};
    all.put(states + c * GradState<M>::kNumbers);
  }
}

/// As layer_norm_grad in each channel; where the statistics are constants, no means are subtracted.
template <class T>
void batch_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& saved_mean, const DenseTensor& saved_variance, const DenseTensor& out_grad,
                     const std::string& data_format, bool is_test, bool use_global_stats, bool trainable_statistics,
                     DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using D = device_t<T>;
  using M = math_t<D>;
  const bool constants = cpu::takes_given_statistics(is_test, use_global_stats, trainable_statistics);
  const int axis = cpu::channel_axis(x, data_format);
  const ChannelShape shape = batch_shape(x, axis);
  const int64_t channels = shape.channels;
  if (channels == 0) return;
  const DeviceScope scope(x.device().index);
  const Scratch table(4 * sizeof(M) * static_cast<size_t>(channels)),
      parts(sizeof(GradState<M>) * static_cast<size_t>(std::max<int64_t>(shape.lines() * shape.parts, 1)));
  M* sums = static_cast<M*>(parts.data());
  const D *const from = elements<const D>(x), *const grad = elements<const D>(out_grad);
  launch_sums(ctx, ChannelGradSums<D>{{from, grad}, elements<const M>(saved_mean), {0, 1, 0, channels}}, shape, sums);
  PartsOfUnit of_channel{shape.images, channels * shape.parts, shape.parts};
  const bool combines = !constants && ctx.reducer() != nullptr;
  const Scratch of_all(combines ? sizeof(GradState<M>) * static_cast<size_t>(channels) : 1);
  if (combines) {
    DenseTensor all = DenseTensor::allocate(x.device(), {Dims{2, channels}, DType::float64});
    launch(ctx, sum_gradients<D>, blocks_of_warps(channels), kUnitThreads, sums, of_channel, channels,
           all.data<double>());
    ctx.all_reduce(all, ReduceType::sum);
    sums = static_cast<M*>(of_all.data());
    launch(ctx, store_gradients<D>, grid_for(channels, kUnitThreads), kUnitThreads, all.data<double>(), channels, sums);
    of_channel = one_part();
  }
  const ChannelAffineGrad<D> affine{
      {from, grad}, x_grad.defined() ? elements<D>(x_grad) : nullptr, static_cast<M*>(table.data()), channels};
  const BatchGradients<D> gradients{sums,
                                    of_channel,
                                    elements<const M>(saved_mean),
                                    elements<const M>(saved_variance),
                                    {scale, 1},
                                    scale_grad.defined() ? elements<M>(scale_grad) : nullptr,
                                    bias_grad.defined() ? elements<M>(bias_grad) : nullptr,
                                    constants,
                                    static_cast<M>(count_of_channel(ctx.input_box(0, x), axis)),
                                    affine};
  launch(ctx, use_batch_gradients<D>, blocks_of_warps(channels), kUnitThreads, gradients, channels);
  if (x_grad.defined()) launch_apply(ctx, affine, shape);
}

}  // namespace

void register_batch_norm(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("batch_norm", backend, dtype_of<T>, &batch_norm<T>);
    register_kernel("batch_norm_grad", backend, dtype_of<T>, &batch_norm_grad<T>);
  });
}

}  // namespace shard::cuda
