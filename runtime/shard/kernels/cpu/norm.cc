// CPU kernels of normalisations by mean and variance: layer_norm, rms_norm, batch_norm. Their
// gradients are in norm_grad.cc, softmax in softmax.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/norm.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/moments.h"
#include "shard/kernels/cpu/norm.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// A mean over a whole row, 0 of an empty one.
double mean_of(double sum, int64_t width) { return width == 0 ? 0 : sum / static_cast<double>(width); }

/// Where other ranks hold parts of the rows, sums are combined between the passes over x. Else one row
/// is done after the other, while it is in the cache.
template <class T>
void layer_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                float epsilon, int begin_norm_axis, DenseTensor& out, DenseTensor& mean, DenseTensor& variance) {
  using C = Compute<T>;
  using S = Statistic<T>;
  const NormRows shape(x.dims(), ctx.input_box(0, x),
                       normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, x.dims().rank()));
  const int64_t width = shape.width, whole = shape.whole_width;
  const std::vector<double> factors = shape.affine(scale, 1.0), offsets = shape.affine(bias, 0.0);
  const double *factor = factors.data(), *offset = offsets.data();
  const std::vector<C> narrow_factors(factors.begin(), factors.end()), narrow_offsets(offsets.begin(), offsets.end());
  const C *narrow_factor = narrow_factors.data(), *narrow_offset = narrow_offsets.data();
  const bool factors_fit = fit_float(factors);
  const auto row = [&](int64_t r) { return WideLine<T>(x.data<T>() + r * width, width); };
  const auto sum_row = [=](const C* from) {
    const double sum = sum_of_numbers<C>(from, width);
    return std::isfinite(sum) ? sum : sum_of<double>(width, [=](int64_t i) { return value_at(from, i); });
  };
  // Of differences to the rounded center.
  const auto squares_of = [=](const C* from, double center) {
    const C rounded = Center<C>(center).rounded;
    const double sum = sum_of_squares<C>(from, width, rounded);
    if (fits_float(sum)) return sum;
    return sum_of<double>(width, [=](int64_t i) {
      const double difference = value_at(from, i) - static_cast<double>(rounded);
      return difference * difference;
    });
  };
  const auto write_row = [&](int64_t r, const C* from, double center, double mean_of_squares) {
    const Center<C> parts(center);
    const double spread = parts.variance(mean_of_squares),
                 inverse = 1.0 / std::sqrt(spread + static_cast<double>(epsilon));
    if (fits_float(spread) && std::abs(center) < kLargestOfFloat && factors_fit) {
      const C rounded = parts.rounded, rest = static_cast<C>(parts.rest), steep = static_cast<C>(inverse);
      write_line(out.data<T>() + r * width, width,
                 [=](int64_t i) { return (from[i] - rounded - rest) * steep * narrow_factor[i] + narrow_offset[i]; });
    } else {
      write_line(out.data<T>() + r * width, width, [=](int64_t i) {
        return static_cast<C>((value_at(from, i) - center) * inverse * factor[i] + offset[i]);
      });
    }
    mean.data<S>()[r] = static_cast<S>(center);
    variance.data<S>()[r] = static_cast<S>(spread);
  };
  if (ctx.reducer() != nullptr) {
    const DenseTensor sums = shape.sums(ctx, 1, [&](int64_t r, double* sum) { *sum = sum_row(row(r).get()); });
    const auto center = [&](int64_t r) { return mean_of(sums.data<double>()[r], whole); };
    const DenseTensor squares =
        shape.sums(ctx, 1, [&](int64_t r, double* sum) { *sum = squares_of(row(r).get(), center(r)); });
    shape.for_each(
        [&](int64_t r) { write_row(r, row(r).get(), center(r), mean_of(squares.data<double>()[r], whole)); });
    return;
  }
  shape.for_each([&](int64_t r) {
    const WideLine<T> line = row(r);
    const double center = mean_of(sum_row(line.get()), whole);
    write_row(r, line.get(), center, mean_of(squares_of(line.get(), center), whole));
  });
}

void layer_norm_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&, float,
                    int begin_norm_axis, DenseTensor&, DenseTensor&, DenseTensor&) {
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, x.dims().rank());
  for (int pass = 0; pass < 2; ++pass)
    dry_all_reduce(ctx, {Dims{x.dims().numel(0, begin), 1}, DType::float64}, ReduceType::sum);
}

template <class T>
void rms_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, float epsilon, DenseTensor& out,
              DenseTensor& invvar) {
  using C = Compute<T>;
  using S = Statistic<T>;
  const NormRows shape(x.dims(), ctx.input_box(0, x), x.dims().rank() - 1);
  const int64_t width = shape.width;
  const std::vector<double> factors = affine_of(scale, width, 1.0);
  const double* factor = factors.data();
  const auto row = [&](int64_t r) { return WideLine<T>(x.data<T>() + r * width, width); };
  const auto sum_squares = [=](const C* from) {
    return sum_of<double>(width, [=](int64_t i) { return value_at(from, i) * value_at(from, i); });
  };
  const auto write_row = [&](int64_t r, const C* from, double squares) {
    const double inverse = 1.0 / std::sqrt(mean_of(squares, shape.whole_width) + static_cast<double>(epsilon));
    write_line(out.data<T>() + r * width, width,
               [=](int64_t i) { return static_cast<C>(value_at(from, i) * inverse * factor[i]); });
    invvar.data<S>()[r] = static_cast<S>(inverse);
  };
  if (ctx.reducer() != nullptr) {
    const DenseTensor squares = shape.sums(ctx, 1, [&](int64_t r, double* sum) { *sum = sum_squares(row(r).get()); });
    shape.for_each([&](int64_t r) { write_row(r, row(r).get(), squares.data<double>()[r]); });
    return;
  }
  shape.for_each([&](int64_t r) {
    const WideLine<T> line = row(r);
    write_row(r, line.get(), sum_squares(line.get()));
  });
}

void rms_norm_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, float, DenseTensor&, DenseTensor&) {
  dry_all_reduce(ctx, {Dims{x.dims().numel(0, x.dims().rank() - 1), 1}, DType::float64}, ReduceType::sum);
}

/// Adds up term(x, channel) per channel, over all ranks that hold shards.
template <class T, class Term>
std::vector<double> channel_sums(const OpContext& ctx, const DenseTensor& x, const AxisView& view, const Term& term) {
  DenseTensor sums = DenseTensor::allocate(kCpu, {Dims{view.size}, DType::float64});
  double* data = sums.data<double>();
  parallel_for(view.size, view.outer * view.inner, [&](int64_t first, int64_t last) {
    std::fill(data + first, data + last, 0.0);
    for (int64_t n = 0; n < view.outer; ++n) {
      for (int64_t c = first; c < last; ++c) {
        const T* line = x.data<T>() + (n * view.size + c) * view.inner;
        if (view.inner == 1) data[c] += term(value_at(line, 0), c);
        else data[c] += sum_of<double>(view.inner, [&](int64_t i) { return term(value_at(line, i), c); });
      }
    }
  });
  ctx.all_reduce(sums, ReduceType::sum);
  return std::vector<double>(sums.data<double>(), sums.data<double>() + view.size);
}

struct ChannelStatistics {
  std::vector<double> mean, variance;
};

template <class T>
ChannelStatistics batch_statistics(const OpContext& ctx, const DenseTensor& x, const AxisView& view, int axis) {
  const Dims global = ctx.input_box(0, x).global;
  double count = 1;
  for (int i = 0; i < global.rank(); ++i) count *= i == axis ? 1.0 : static_cast<double>(global[i]);
  ChannelStatistics result;
  result.mean = channel_sums<T>(ctx, x, view, [](double value, int64_t) { return value; });
  for (double& value : result.mean) value /= count;
  const double* center = result.mean.data();
  result.variance = channel_sums<T>(
      ctx, x, view, [center](double value, int64_t c) { return (value - center[c]) * (value - center[c]); });
  for (double& value : result.variance) value /= count;
  return result;
}

/// out = old * momentum + batch * (1 - momentum), or old where the batch is empty.
template <class S>
void update_running(const DenseTensor& old, const std::vector<double>* batch, float momentum, DenseTensor& out) {
  for (int64_t c = 0; c < out.numel(); ++c) {
    const double before = static_cast<double>(old.data<S>()[c]);
    const double m = static_cast<double>(momentum);
    out.data<S>()[c] =
        static_cast<S>(batch == nullptr ? before : before * m + (*batch)[static_cast<size_t>(c)] * (1.0 - m));
  }
}

template <class T>
void normalise_channels(const DenseTensor& x, const AxisView& view, const ChannelStatistics& used,
                        const std::vector<double>& inverse, const DenseTensor& scale, const DenseTensor& bias,
                        DenseTensor& out) {
  const std::vector<double> factor = affine_of(scale, view.size, 1.0), offset = affine_of(bias, view.size, 0.0);
  parallel_for(view.outer * view.size, view.inner, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const size_t c = static_cast<size_t>(line % view.size);
      const double gain = inverse[c] * factor[c];
      const T* from = x.data<T>() + line * view.inner;
      T* to = out.data<T>() + line * view.inner;
      for (int64_t i = 0; i < view.inner; ++i)
        to[i] = from_double<T>((value_at(from, i) - used.mean[c]) * gain + offset[c]);
    }
  });
}

/// Mean and variance of the batch are summed over all ranks, one after the other.
void batch_norm_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&,
                    const DenseTensor&, const DenseTensor&, bool is_test, float, float, const std::string& data_format,
                    bool use_global_stats, bool trainable_statistics, DenseTensor&, DenseTensor&, DenseTensor&,
                    DenseTensor&, DenseTensor&) {
  if (takes_given_statistics(is_test, use_global_stats, trainable_statistics)) return;
  const Meta sums{Dims{x.dims()[channel_axis(x, data_format)]}, DType::float64};
  for (int i = 0; i < 2; ++i) dry_all_reduce(ctx, sums, ReduceType::sum);
}

template <class T>
void batch_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& mean, const DenseTensor& variance,
                const DenseTensor& scale, const DenseTensor& bias, bool is_test, float momentum, float epsilon,
                const std::string& data_format, bool use_global_stats, bool trainable_statistics, DenseTensor& out,
                DenseTensor& mean_out, DenseTensor& variance_out, DenseTensor& saved_mean,
                DenseTensor& saved_variance) {
  using S = Statistic<T>;
  const int axis = channel_axis(x, data_format);
  const AxisView view = axis_view(x.dims(), axis);
  const bool given = takes_given_statistics(is_test, use_global_stats, trainable_statistics);
  ChannelStatistics used;
  if (given) used = {affine_of(mean, view.size, 0.0), affine_of(variance, view.size, 0.0)};
  else used = batch_statistics<T>(ctx, x, view, axis);
  // With an empty batch the running statistics do not change.
  const Dims global = ctx.input_box(0, x).global;
  const bool learn = !given && global.numel() != 0;
  update_running<S>(mean, learn ? &used.mean : nullptr, momentum, mean_out);
  update_running<S>(variance, learn ? &used.variance : nullptr, momentum, variance_out);
  std::vector<double> inverse(used.variance);
  for (double& value : inverse) value = 1.0 / std::sqrt(value + static_cast<double>(epsilon));
  for (int64_t c = 0; c < view.size; ++c) {
    saved_mean.data<S>()[c] = static_cast<S>(used.mean[static_cast<size_t>(c)]);
    saved_variance.data<S>()[c] = static_cast<S>(inverse[static_cast<size_t>(c)]);
  }
  normalise_channels<T>(x, view, used, inverse, scale, bias, out);
}

void register_norm_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("layer_norm", kBackend, dtype_of<T>, &layer_norm<T>);
    register_kernel("rms_norm", kBackend, dtype_of<T>, &rms_norm<T>);
    register_kernel("batch_norm", kBackend, dtype_of<T>, &batch_norm<T>);
  });
  register_dry_kernel("layer_norm", &layer_norm_dry);
  register_dry_kernel("rms_norm", &rms_norm_dry);
  register_dry_kernel("batch_norm", &batch_norm_dry);
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_norm_for_target);
void register_norm() { HWY_DYNAMIC_DISPATCH(register_norm_for_target)(); }
}  // namespace shard::cpu
#endif
