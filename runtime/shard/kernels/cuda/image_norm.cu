// Normalisations of images by group or by channel on CUDA, and their gradients: group_norm, instance_norm.
#include "shard/kernels/cuda/channels.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/device_work.h"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// What is here of the groups of channels of images. Other ranks may have other channels and places.
struct Groups {
  ChannelShape shape;
  ChannelGroups of;
  int64_t channels;  // of all ranks
  int64_t places;    // of a whole channel
  int64_t first;     // the channel that is the first one here

  int64_t count() const { return channels == 0 ? 0 : shape.images * of.groups; }
  /// Elements of a whole group.
  double elements() const { return static_cast<double>(of.width * places); }
};

/// `groups` 0: each channel is one, and each rank has those of its channels.
Groups groups_of(const OpContext& ctx, const DenseTensor& x, int64_t groups, bool last) {
  ChannelShape shape = channel_shape(x.dims(), last);
  split_places(shape);
  const Box box = ctx.input_box(0, x);
  const ChannelShape whole = channel_shape(box.global, last);
  const int64_t first = box.begin[last ? box.global.rank() - 1 : 1];
  const ChannelGroups of = groups == 0 ? ChannelGroups{shape.channels, 1, 0, shape.channels}
                                       : ChannelGroups{groups, whole.channels / groups, first, shape.channels};
  return {shape, of, whole.channels, whole.places, first};
}

bool channels_last(const std::string& data_format) { return data_format[1] != 'C'; }

template <class T>
struct GroupStatistics {
  using M = math_t<T>;
  const M* parts;     // of Moments
  const M* combined;  // the Moments of whole groups; null where they are those of the parts that are here
  PartsOfGroup of_group;
  int64_t groups;
  M *mean, *spread;  // [groups]: the latter is 1 / sqrt(variance + epsilon) if `inverted`, else the variance
  ColumnNumbers<T> scale, bias;
  M epsilon;
  bool inverted;
  ChannelAffine<T> affine;
};

/// A warp for each group.
template <class T>
__global__ void use_group_statistics(GroupStatistics<T> s) {
  using M = math_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = int64_t{gridDim.x} * blockDim.x / kWarp;
  for (int64_t g = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; g < s.groups; g += step) {
    const Moments<M> all = s.combined != nullptr ? Moments<M>::get(s.combined + g * Moments<M>::kNumbers)
                                                 : s.of_group.of_unit(MomentSums<T>{}, s.parts, g);
    const M mean = first_lane(all.mean), variance = first_lane(all.count == 0 ? M(0) : all.squares / all.count);
    const M inverse = M(1) / ::sqrt(variance + s.epsilon);
    if (lane == 0) {
      s.mean[g] = mean;
      s.spread[g] = s.inverted ? inverse : variance;
    }
    const ChannelGroups& of = s.of_group.of;
    for (int64_t line = of.first(g) + lane; line < of.end(g); line += kWarp) {
      M factor[1], offset[1];
      s.scale.read(line % of.channels, factor);
      s.bias.read(line % of.channels, offset);
      M* const table = s.affine.table + line;
      table[0] = mean;
      table[s.affine.count] = inverse * factor[0];
      table[2 * s.affine.count] = offset[0];
    }
  }
}

template <class T>
void normalise(const OpContext& ctx, const Groups& g, const DenseTensor& x, const DenseTensor& scale,
               const DenseTensor& bias, float epsilon, bool inverted, DenseTensor& y, DenseTensor& mean,
               DenseTensor& variance) {
  using D = device_t<T>;
  using M = math_t<D>;
  const int64_t lines = g.shape.lines();
  if (g.count() == 0) return;
  const DeviceScope scope(y.device().index);
  const Scratch table(3 * sizeof(M) * static_cast<size_t>(lines)),
      parts(sizeof(Moments<M>) * static_cast<size_t>(lines * g.shape.parts));
  const D* const from = elements<const D>(x);
  M* const moments = static_cast<M*>(parts.data());
  launch_sums(ctx, MomentSums<D>{{from}}, g.shape, moments);
  const PartsOfGroup of_group{g.of, g.shape.parts};
  const Scratch of_all(ctx.reducer() == nullptr ? 0 : sizeof(Moments<M>) * static_cast<size_t>(g.count()));
  M* const combined = static_cast<M*>(of_all.data());
  if (combined != nullptr) combine_moments<D>(ctx, x.device(), moments, of_group, g.elements(), g.count(), combined);
  const ChannelAffine<D> affine{{from}, elements<D>(y), static_cast<M*>(table.data()), lines};
  launch(ctx, use_group_statistics<D>, blocks_of_warps(g.count()), kUnitThreads,
         {moments,
          combined,
          of_group,
          g.count(),
          elements<M>(mean),
          elements<M>(variance),
          {scale, 1},
          {bias, 0},
          epsilon,
          inverted,
          affine});
  launch_apply(ctx, affine, g.shape);
}

template <class T>
struct GroupGradients {
  using M = math_t<T>;
  const M* parts;  // of GradState
  int64_t parts_of_channel, groups;
  ChannelGroups of;
  const M *mean, *spread;  // as in GroupStatistics
  M epsilon;
  bool inverted;
  ColumnNumbers<T> scale;
  M elements;            // of a group
  double* mine;          // where what is here of a group goes [groups, 2], and nothing else is done; or null
  const double* totals;  // that of all ranks; null where groups are whole
  M* sums;               // GradState of a channel of an image: of y_grad, and of y_grad * (x - mean) * inverse
  ChannelAffineGrad<T> affine;

  __device__ M inverse(int64_t g) const { return inverted ? spread[g] : M(1) / ::sqrt(spread[g] + epsilon); }
};

/// A warp for each group.
template <class T>
__global__ void use_group_gradients(GroupGradients<T> s) {
  using M = math_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = int64_t{gridDim.x} * blockDim.x / kWarp;
  for (int64_t g = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp; g < s.groups; g += step) {
    const M inverse = s.inverse(g), mean = s.mean[g];
    M along = 0, across = 0;
    for (int64_t line = s.of.first(g) + lane; s.totals == nullptr && line < s.of.end(g); line += kWarp) {
      GradState<M> sums{0, 0};
      for (int64_t part = 0; part < s.parts_of_channel; ++part) {
        const auto more = GradState<M>::get(s.parts + (line * s.parts_of_channel + part) * 2);
        sums = {sums.plain + more.plain, sums.normal + more.normal};
      }
      sums.normal *= inverse;
      sums.put(s.sums + line * 2);
      M factor[1];
      s.scale.read(line % s.of.channels, factor);
      along += factor[0] * sums.plain;
      across += factor[0] * sums.normal;
    }
    along = warp_reduce(along, Plus{});
    across = warp_reduce(across, Plus{});
    if (s.mine != nullptr) {
      if (lane == 0) {
        s.mine[2 * g] = static_cast<double>(along);
        s.mine[2 * g + 1] = static_cast<double>(across);
      }
      continue;
    }
    if (s.totals != nullptr) {
      along = static_cast<M>(s.totals[2 * g]);
      across = static_cast<M>(s.totals[2 * g + 1]);
    }
    along /= s.elements;
    across /= s.elements;
    for (int64_t line = s.of.first(g) + lane; line < s.of.end(g); line += kWarp) {
      M factor[1];
      s.scale.read(line % s.of.channels, factor);
      M* const table = s.affine.table + line;
      table[0] = mean;
      table[s.affine.count] = inverse * factor[0];
      table[2 * s.affine.count] = along * inverse;
      table[3 * s.affine.count] = across * inverse * inverse;
    }
  }
}

/// The sums over images, as the gradients of scale and bias.
template <class T, class Out>
__global__ void sum_images(Out* out, const math_t<T>* sums, int64_t images, int64_t channels, bool normal) {
  for (int64_t c = grid_first<int64_t>(); c < channels; c += grid_step<int64_t>()) {
    math_t<T> sum = 0;
#pragma unroll 8
    for (int64_t n = 0; n < images; ++n) {
      const auto more = GradState<math_t<T>>::get(sums + (n * channels + c) * 2);
      sum += normal ? more.normal : more.plain;
    }
    if constexpr (std::is_same_v<Out, double>) out[c] = static_cast<double>(sum);
    else out[c] = store<Out>(sum);
  }
}

/// Ranks may hold other places of these channels, or other channels: each adds its own to the sums of all channels.
template <class T>
void write_sums(const OpContext& ctx, const math_t<T>* sums, const Groups& g, bool normal, DenseTensor& out) {
  if (!out.defined()) return;
  const ChannelShape& shape = g.shape;
  const unsigned blocks = grid_for(shape.channels, kUnitThreads);
  if (ctx.reducer() != nullptr) {
    DenseTensor all = DenseTensor::allocate(out.device(), {Dims{g.channels}, DType::float64});
    fill_zeros(all);
    double* const mine = all.data<double>() + g.first;
    launch(ctx, sum_images<T, double>, blocks, kUnitThreads, mine, sums, shape.images, shape.channels, normal);
    ctx.all_reduce(all, ReduceType::sum);
    device_work(out.device())
        ->convert_floats(out.device().index, out.raw(), out.dtype(), mine, DType::float64, shape.channels);
    return;
  }
  if (size_of(out.dtype()) == sizeof(T))
    launch(ctx, sum_images<T, T>, blocks, kUnitThreads, elements<T>(out), sums, shape.images, shape.channels, normal);
  else
    launch(ctx, sum_images<T, math_t<T>>, blocks, kUnitThreads, elements<math_t<T>>(out), sums, shape.images,
           shape.channels, normal);
}

/// With n = (x - mean) * inverse and h = y_grad * scale: x_grad = (h - mean(h) - n * mean(h * n)) * inverse. Results may be absent.
template <class T>
void normalise_grad(const OpContext& ctx, const Groups& g, const DenseTensor& x, const DenseTensor& scale,
                    const DenseTensor& mean, const DenseTensor& variance, float epsilon, bool inverted,
                    const DenseTensor& y_grad, DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using D = device_t<T>;
  using M = math_t<D>;
  const ChannelShape& shape = g.shape;
  const int64_t lines = shape.lines();
  if (g.channels == 0) return;
  const DeviceScope scope(x.device().index);
  const size_t states = static_cast<size_t>(std::max<int64_t>(lines, 1));
  const Scratch table(4 * sizeof(M) * states), sums_memory(sizeof(GradState<M>) * states),
      parts(sizeof(GradState<M>) * states * static_cast<size_t>(shape.parts));
  const D *const from = elements<const D>(x), *const grad = elements<const D>(y_grad);
  M *const of_parts = static_cast<M*>(parts.data()), *const sums = static_cast<M*>(sums_memory.data());
  launch_sums(ctx, ChannelGradSums<D>{{from, grad}, elements<const M>(mean), g.of}, shape, of_parts);
  const ChannelAffineGrad<D> affine{
      {from, grad}, x_grad.defined() ? elements<D>(x_grad) : nullptr, static_cast<M*>(table.data()), lines};
  GroupGradients<D> gradients{of_parts,
                              shape.parts,
                              g.count(),
                              g.of,
                              elements<const M>(mean),
                              elements<const M>(variance),
                              epsilon,
                              inverted,
                              {scale, 1},
                              static_cast<M>(g.elements()),
                              nullptr,
                              nullptr,
                              sums,
                              affine};
  const auto use = [&] {
    if (g.count() != 0) launch(ctx, use_group_gradients<D>, blocks_of_warps(g.count()), kUnitThreads, gradients);
  };
  DenseTensor totals;
  if (ctx.reducer() != nullptr && x_grad.defined()) {
    totals = numbers_of_lines(x, g.count(), 2);
    gradients.mine = totals.data<double>();
    use();
    ctx.all_reduce(totals, ReduceType::sum);
    gradients.mine = nullptr;
    gradients.totals = totals.data<double>();
  }
  use();
  if (x_grad.defined()) launch_apply(ctx, affine, shape);
  write_sums<D>(ctx, sums, g, true, scale_grad);
  write_sums<D>(ctx, sums, g, false, bias_grad);
}

template <class T>
void group_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                float epsilon, int groups, const std::string& data_format, DenseTensor& y, DenseTensor& mean,
                DenseTensor& variance) {
  normalise<T>(ctx, groups_of(ctx, x, groups, channels_last(data_format)), x, scale, bias, epsilon, false, y, mean,
               variance);
}

template <class T>
void instance_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                   float epsilon, DenseTensor& y, DenseTensor& saved_mean, DenseTensor& saved_variance) {
  normalise<T>(ctx, groups_of(ctx, x, 0, false), x, scale, bias, epsilon, true, y, saved_mean, saved_variance);
}

template <class T>
void group_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& mean, const DenseTensor& variance, const DenseTensor& y_grad, float epsilon,
                     int groups, const std::string& data_format, DenseTensor& x_grad, DenseTensor& scale_grad,
                     DenseTensor& bias_grad) {
  normalise_grad<T>(ctx, groups_of(ctx, x, groups, channels_last(data_format)), x, scale, mean, variance, epsilon,
                    false, y_grad, x_grad, scale_grad, bias_grad);
}

template <class T>
void instance_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                        const DenseTensor& saved_mean, const DenseTensor& saved_variance, const DenseTensor& y_grad,
                        DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  normalise_grad<T>(ctx, groups_of(ctx, x, 0, false), x, scale, saved_mean, saved_variance, 0, true, y_grad, x_grad,
                    scale_grad, bias_grad);
}

}  // namespace

void register_image_norm(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("group_norm", backend, dtype_of<T>, &group_norm<T>);
    register_kernel("group_norm_grad", backend, dtype_of<T>, &group_norm_grad<T>);
    register_kernel("instance_norm", backend, dtype_of<T>, &instance_norm<T>);
    register_kernel("instance_norm_grad", backend, dtype_of<T>, &instance_norm_grad<T>);
  });
}

}  // namespace shard::cuda
