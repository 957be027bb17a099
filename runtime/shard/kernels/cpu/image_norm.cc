// CPU kernels of normalisations of images by group or by channel, and their gradients: group_norm, instance_norm.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/image_norm.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/moments.h"
#include "shard/kernels/cpu/norm.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// Images of `batch` * `groups` groups. The part of a group that is here consists of runs of neighbours: its channels
/// one after the other, or, where channels are last, its places. Other ranks may hold other channels and places.
struct Groups {
  int64_t batch, groups, width;  // width: channels of a whole group
  int64_t begin, channels;       // that are here: the first one, and how many
  int64_t whole, places;         // places of a whole channel, and of those that are here
  bool last;

  int64_t count() const { return batch * groups; }
  double elements() const { return static_cast<double>(width * whole); }
  /// The channels from first(i) to end(i) of those that are here are in group i.
  int64_t first(int64_t i) const { return std::clamp<int64_t>(i % groups * width - begin, 0, channels); }
  int64_t end(int64_t i) const { return std::clamp<int64_t>((i % groups + 1) * width - begin, 0, channels); }
  int64_t runs(int64_t i) const { return last ? places : end(i) - first(i); }
  int64_t length(int64_t i) const { return last ? end(i) - first(i) : places; }
  /// The first element of run r of group i.
  int64_t run(int64_t i, int64_t r) const {
    if (!last) return (i / groups * channels + first(i) + r) * places;
    return (i / groups * places + r) * channels + first(i);
  }
  /// The channel, of those that are here, of element e of run r of group i.
  int64_t channel(int64_t i, int64_t r, int64_t e) const { return first(i) + (last ? e : r); }
};

/// `groups` 0: each channel is one, and each rank has those of its channels.
Groups groups_of(const OpContext& ctx, const DenseTensor& x, int64_t groups, bool last) {
  const Dims& dims = x.dims();
  const Box box = ctx.input_box(0, x);
  const int axis = last ? dims.rank() - 1 : 1;
  const auto places = [&](const Dims& of) { return last ? of.numel(1, axis) : of.numel(2, of.rank()); };
  Groups g{dims[0], groups, 1, 0, dims[axis], places(box.global), places(dims), last};
  if (groups == 0) {
    g.groups = g.channels;
  } else {
    g.width = box.global[axis] / groups;
    g.begin = box.begin[axis];
  }
  return g;
}

/// The sum of term(element, channel) over the part of group i that is here.
template <class Term>
double group_sum(const Groups& g, int64_t i, const Term& term) {
  double total = 0;
  for (int64_t r = 0; r < g.runs(i); ++r) {
    const int64_t first = g.run(i, r);
    total += sum_of<double>(g.length(i), [&](int64_t e) { return term(first + e, g.channel(i, r, e)); });
  }
  return total;
}

/// The sum of sum_of(first element, count) over the runs of the part of group i that is here.
template <class SumOf>
double run_sums(const Groups& g, int64_t i, const SumOf& sum_of) {
  double total = 0;
  for (int64_t r = 0; r < g.runs(i); ++r) total += sum_of(g.run(i, r), g.length(i));
  return total;
}

/// Calls body(element, channel) for each element of run r of group i. Where all are of one channel, it is the same for
/// the whole loop, so that the loop vectorises.
template <class Body>
HWY_INLINE void for_run(const Groups& g, int64_t i, int64_t r, const Body& body) {
  const int64_t begin = g.run(i, r), length = g.length(i), c = g.channel(i, r, 0);
  if (g.last) {
    for (int64_t e = 0; e < length; ++e) body(begin + e, c + e);
  } else {
    for (int64_t e = 0; e < length; ++e) body(begin + e, c);
  }
}

/// Calls body(group) for each group, on several threads.
template <class Body>
void for_groups(const Groups& g, const Body& body) {
  parallel_for(g.count(), g.groups == 0 ? 0 : 4 * g.channels * g.places / g.groups, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) body(i);
  });
}

/// `count` sums of each group, which sums_of(group, sums) computes of the part that is here, added up over the ranks
/// that hold the other parts. Empty where groups are whole: then their sums need not be kept.
template <class Sums>
std::vector<double> combined(const OpContext& ctx, const Groups& g, int64_t count, const Sums& sums_of) {
  if (ctx.reducer() == nullptr) return {};
  DenseTensor all = DenseTensor::allocate(kCpu, {Dims{g.count(), count}, DType::float64});
  double* const data = all.data<double>();
  for_groups(g, [&](int64_t i) { sums_of(i, data + i * count); });
  ctx.all_reduce(all, ReduceType::sum);
  return {data, data + all.numel()};
}

/// y, and mean and variance of each group; the latter as 1 / sqrt(variance + epsilon) if `inverted`.
template <class T>
void normalise(const OpContext& ctx, const Groups& g, const DenseTensor& x, const DenseTensor& scale,
               const DenseTensor& bias, float epsilon, bool inverted, DenseTensor& y, DenseTensor& mean,
               DenseTensor& variance) {
  using C = Compute<T>;
  using S = Statistic<T>;
  const std::vector<double> factors = affine_of(scale, g.channels, 1.0), offsets = affine_of(bias, g.channels, 0.0);
  const double *const factor = factors.data(), *const offset = offsets.data();
  const bool factors_fit = fit_float(factors);
  const T* const from = x.data<T>();
  T* const to = y.data<T>();
  const auto mean_of = [&](double sum) { return g.elements() == 0 ? 0 : sum / g.elements(); };
  const auto sum_of_group = [&](int64_t i, double* sum) {
    *sum = run_sums(g, i, [=](int64_t first, int64_t n) { return sum_of_numbers<C>(from + first, n); });
    if (!std::isfinite(*sum)) *sum = group_sum(g, i, [=](int64_t e, int64_t) { return value_at(from, e); });
  };
  const std::vector<double> all_sums = combined(ctx, g, 1, sum_of_group);
  const auto center_of = [&](int64_t i) {
    double sum = 0;
    if (all_sums.empty()) sum_of_group(i, &sum);
    else sum = all_sums[static_cast<size_t>(i)];
    return mean_of(sum);
  };
  // Of differences to the rounded center.
  const auto squares_of = [&](int64_t i, double center) {
    const C rounded = Center<C>(center).rounded;
    const double sum =
        run_sums(g, i, [=](int64_t first, int64_t n) { return sum_of_squares<C>(from + first, n, rounded); });
    if (fits_float(sum)) return sum;
    return group_sum(g, i, [=](int64_t e, int64_t) {
      const double difference = value_at(from, e) - static_cast<double>(rounded);
      return difference * difference;
    });
  };
  const std::vector<double> all_squares =
      combined(ctx, g, 1, [&](int64_t i, double* sum) { *sum = squares_of(i, center_of(i)); });
  for_groups(g, [&](int64_t i) {
    const double center = center_of(i);
    const Center<C> parts(center);
    const double spread =
        parts.variance(mean_of(all_squares.empty() ? squares_of(i, center) : all_squares[static_cast<size_t>(i)]));
    const double inverse = 1.0 / std::sqrt(spread + static_cast<double>(epsilon));
    const bool is_narrow = fits_float(spread) && std::abs(center) < kLargestOfFloat && factors_fit;
    for (int64_t r = 0; is_narrow && r < g.runs(i); ++r) {
      for_run(g, i, r, [=](int64_t e, int64_t c) {
        const double slope = inverse * factor[c];
        const auto along = static_cast<C>(slope), above = static_cast<C>(offset[c] - parts.rest * slope);
        to[e] = static_cast<T>((static_cast<C>(from[e]) - parts.rounded) * along + above);
      });
    }
    for (int64_t r = 0; !is_narrow && r < g.runs(i); ++r) {
      for_run(g, i, r, [=](int64_t e, int64_t c) {
        to[e] = from_double<T>((value_at(from, e) - center) * (inverse * factor[c]) + offset[c]);
      });
    }
    mean.data<S>()[i] = static_cast<S>(center);
    variance.data<S>()[i] = static_cast<S>(inverted ? inverse : spread);
  });
}

void normalise_dry(const OpContext& ctx, const Groups& g) {
  for (int pass = 0; pass < 2; ++pass) dry_all_reduce(ctx, {Dims{g.count(), 1}, DType::float64}, ReduceType::sum);
}

/// The channels of the whole images.
int64_t whole_channels(const OpContext& ctx, const DenseTensor& x, bool last) {
  const Dims global = ctx.input_box(0, x).global;
  return global[last ? global.rank() - 1 : 1];
}

/// Adds up for each channel over the batch, in its order, and over the ranks that hold other places of it, and writes,
/// unless `out` is absent. `sums` has a row for each image. Ranks may hold different channels: each adds its own to a
/// row of all channels.
void write_channel_sums(const OpContext& ctx, const Groups& g, int64_t whole_channels, int64_t first,
                        const std::vector<double>& sums, DenseTensor& out) {
  if (!out.defined()) return;
  DenseTensor all = DenseTensor::allocate(kCpu, {Dims{whole_channels}, DType::float64});
  std::fill_n(all.data<double>(), whole_channels, 0.0);
  for (int64_t c = 0; c < g.channels; ++c) {
    double sum = 0;
    for (int64_t n = 0; n < g.batch; ++n) sum += sums[static_cast<size_t>(n * g.channels + c)];
    all.data<double>()[first + c] = sum;
  }
  ctx.all_reduce(all, ReduceType::sum);
  visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
    for (int64_t c = 0; c < g.channels; ++c) out.data<T>()[c] = from_double<T>(all.data<double>()[first + c]);
  });
}

/// Of each channel of each image [batch, channels] that is here, the sums of y_grad and of y_grad * n, where n = (x - mean)
/// * inverse is the normalised x.
struct ChannelSums {
  std::vector<double> plain, normal;

  explicit ChannelSums(const Groups& g) : plain(static_cast<size_t>(g.batch * g.channels)), normal(plain.size()) {}

  /// Adds up the part of group i that is here.
  template <class T>
  void add(const Groups& g, int64_t i, const T* x, const T* grad, double center, double inverse) {
    const int64_t row = i / g.groups * g.channels;
    double *const plain_row = plain.data() + row, *const normal_row = normal.data() + row;
    for (int64_t r = 0; r < g.runs(i); ++r) {
      if (g.last) {
        for_run(g, i, r, [=](int64_t e, int64_t c) {
          plain_row[c] += value_at(grad, e);
          normal_row[c] += value_at(grad, e) * (value_at(x, e) - center);
        });
        continue;
      }
      const T *const from = x + g.run(i, r), *const given = grad + g.run(i, r);
      const int64_t c = g.channel(i, r, 0);
      plain_row[c] = sum_of<double>(g.length(i), [=](int64_t e) { return value_at(given, e); });
      normal_row[c] =
          sum_of<double>(g.length(i), [=](int64_t e) { return value_at(given, e) * (value_at(from, e) - center); });
    }
    for (int64_t c = g.first(i); c < g.end(i); ++c) normal_row[c] *= inverse;
  }
  /// Of group i, the sums of h and of h * n, where h = y_grad * factor.
  void of_group(const Groups& g, int64_t i, const double* factor, double* sums) const {
    const auto row = static_cast<size_t>(i / g.groups * g.channels);
    sums[0] = sums[1] = 0;
    for (int64_t c = g.first(i); c < g.end(i); ++c) {
      sums[0] += factor[c] * plain[row + static_cast<size_t>(c)];
      sums[1] += factor[c] * normal[row + static_cast<size_t>(c)];
    }
  }
};

/// With n = (x - mean) * inverse and h = y_grad * scale: x_grad = (h - mean(h) - n * mean(h * n)) * inverse. Results may
/// be absent.
template <class T, class Inverse>
void normalise_grad(const OpContext& ctx, const Groups& g, const DenseTensor& x, const DenseTensor& scale,
                    const DenseTensor& mean, const Inverse& inverse_of, const DenseTensor& y_grad, DenseTensor& x_grad,
                    DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using S = Statistic<T>;
  const std::vector<double> factors = affine_of(scale, g.channels, 1.0);
  const double* const factor = factors.data();
  const T *const from = x.data<T>(), *const grad = y_grad.data<T>();
  T* const to = x_grad.defined() ? x_grad.data<T>() : nullptr;
  const auto center_of = [&](int64_t i) { return static_cast<double>(mean.data<S>()[i]); };
  ChannelSums channels(g);
  const auto add_up = [&](int64_t i, double* sums) {
    channels.add(g, i, from, grad, center_of(i), inverse_of(i));
    channels.of_group(g, i, factor, sums);
  };
  const std::vector<double> all = to == nullptr ? std::vector<double>() : combined(ctx, g, 2, add_up);
  for_groups(g, [&](int64_t i) {
    double sums[2];
    if (all.empty()) add_up(i, sums);
    else std::copy_n(all.data() + 2 * i, 2, sums);
    const double along = sums[0] / g.elements(), across = sums[1] / g.elements();
    const double center = center_of(i), inverse = inverse_of(i);
    const double offset = along * inverse, slope = across * inverse * inverse;
    for (int64_t r = 0; to != nullptr && r < g.runs(i); ++r) {
      for_run(g, i, r, [=](int64_t e, int64_t c) {
        const double own = value_at(grad, e) * (factor[c] * inverse);
        to[e] = from_double<T>(own - offset - (value_at(from, e) - center) * slope);
      });
    }
  });
  const int64_t first = ctx.input_box(0, x).begin[g.last ? x.dims().rank() - 1 : 1];
  write_channel_sums(ctx, g, whole_channels(ctx, x, g.last), first, channels.normal, scale_grad);
  write_channel_sums(ctx, g, whole_channels(ctx, x, g.last), first, channels.plain, bias_grad);
}

void normalise_grad_dry(const OpContext& ctx, const Groups& g, const DenseTensor& x, const DenseTensor& x_grad,
                        const DenseTensor& scale_grad, const DenseTensor& bias_grad) {
  if (x_grad.defined()) dry_all_reduce(ctx, {Dims{g.count(), 2}, DType::float64}, ReduceType::sum);
  for (const DenseTensor* out : {&scale_grad, &bias_grad}) {
    if (out->defined()) dry_all_reduce(ctx, {Dims{whole_channels(ctx, x, g.last)}, DType::float64}, ReduceType::sum);
  }
}

bool channels_last(const std::string& data_format) { return data_format[1] != 'C'; }

template <class T>
void group_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                float epsilon, int groups, const std::string& data_format, DenseTensor& y, DenseTensor& mean,
                DenseTensor& variance) {
  const Groups g = groups_of(ctx, x, groups, channels_last(data_format));
  normalise<T>(ctx, g, x, scale, bias, epsilon, false, y, mean, variance);
}

void group_norm_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&, float,
                    int groups, const std::string& data_format, DenseTensor&, DenseTensor&, DenseTensor&) {
  normalise_dry(ctx, groups_of(ctx, x, groups, channels_last(data_format)));
}

template <class T>
void instance_norm(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                   float epsilon, DenseTensor& y, DenseTensor& saved_mean, DenseTensor& saved_variance) {
  normalise<T>(ctx, groups_of(ctx, x, 0, false), x, scale, bias, epsilon, true, y, saved_mean, saved_variance);
}

void instance_norm_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&, float,
                       DenseTensor&, DenseTensor&, DenseTensor&) {
  normalise_dry(ctx, groups_of(ctx, x, 0, false));
}

template <class T>
void group_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& mean, const DenseTensor& variance, const DenseTensor& y_grad, float epsilon,
                     int groups, const std::string& data_format, DenseTensor& x_grad, DenseTensor& scale_grad,
                     DenseTensor& bias_grad) {
  const auto inverse = [&](int64_t i) {
    return 1.0 / std::sqrt(static_cast<double>(variance.data<Statistic<T>>()[i]) + static_cast<double>(epsilon));
  };
  const Groups g = groups_of(ctx, x, groups, channels_last(data_format));
  normalise_grad<T>(ctx, g, x, scale, mean, inverse, y_grad, x_grad, scale_grad, bias_grad);
}

void group_norm_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&,
                         const DenseTensor&, const DenseTensor&, const DenseTensor&, float, int groups,
                         const std::string& data_format, DenseTensor& x_grad, DenseTensor& scale_grad,
                         DenseTensor& bias_grad) {
  normalise_grad_dry(ctx, groups_of(ctx, x, groups, channels_last(data_format)), x, x_grad, scale_grad, bias_grad);
}

template <class T>
void instance_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                        const DenseTensor& saved_mean, const DenseTensor& saved_variance, const DenseTensor& y_grad,
                        DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  const auto inverse = [&](int64_t i) { return static_cast<double>(saved_variance.data<Statistic<T>>()[i]); };
  normalise_grad<T>(ctx, groups_of(ctx, x, 0, false), x, scale, saved_mean, inverse, y_grad, x_grad, scale_grad,
                    bias_grad);
}

void instance_norm_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&,
                            const DenseTensor&, const DenseTensor&, const DenseTensor&, DenseTensor& x_grad,
                            DenseTensor& scale_grad, DenseTensor& bias_grad) {
  normalise_grad_dry(ctx, groups_of(ctx, x, 0, false), x, x_grad, scale_grad, bias_grad);
}

void register_image_norm_for_target() {
  register_dry_kernel("group_norm", &group_norm_dry);
  register_dry_kernel("group_norm_grad", &group_norm_grad_dry);
  register_dry_kernel("instance_norm", &instance_norm_dry);
  register_dry_kernel("instance_norm_grad", &instance_norm_grad_dry);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("group_norm", kBackend, dtype_of<T>, &group_norm<T>);
    register_kernel("group_norm_grad", kBackend, dtype_of<T>, &group_norm_grad<T>);
    register_kernel("instance_norm", kBackend, dtype_of<T>, &instance_norm<T>);
    register_kernel("instance_norm_grad", kBackend, dtype_of<T>, &instance_norm_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_image_norm_for_target);
void register_image_norm() { HWY_DYNAMIC_DISPATCH(register_image_norm_for_target)(); }
}  // namespace shard::cpu
#endif
