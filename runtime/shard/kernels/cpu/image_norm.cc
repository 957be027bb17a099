// CPU kernels of normalisations of images by group or by channel, and their gradients: group_norm, instance_norm.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/image_norm.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/norm.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// Images of `batch` * `groups` groups. A group consists of runs of neighbours: its channels one after the other, or,
/// where channels are last, its places.
struct Groups {
  int64_t batch, groups, channels, places;  // channels: of a group
  bool last;

  int64_t count() const { return batch * groups; }
  double elements() const { return static_cast<double>(channels * places); }
  int64_t runs() const { return last ? places : channels; }
  int64_t length() const { return last ? channels : places; }
  /// The first element of run r of group i.
  int64_t run(int64_t i, int64_t r) const {
    if (!last) return (i * channels + r) * places;
    return ((i / groups * places + r) * groups + i % groups) * channels;
  }
  /// The channel of element e of run r of group i.
  int64_t channel(int64_t i, int64_t r, int64_t e) const { return i % groups * channels + (last ? e : r); }
};

Groups groups_of(const DenseTensor& x, int64_t groups, bool last) {
  const Dims& dims = x.dims();
  const int64_t channels = dims[last ? dims.rank() - 1 : 1];
  const int64_t places = last ? dims.numel(1, dims.rank() - 1) : dims.numel(2, dims.rank());
  return {dims[0], groups, groups == 0 ? 0 : channels / groups, places, last};
}

/// The sum of term(element, channel) over group i.
template <class Term>
double group_sum(const Groups& g, int64_t i, const Term& term) {
  double total = 0;
  for (int64_t r = 0; r < g.runs(); ++r) {
    const int64_t first = g.run(i, r);
    total += sum_of<double>(g.length(), [&](int64_t e) { return term(first + e, g.channel(i, r, e)); });
  }
  return total;
}

/// y, and mean and variance of each group; the latter as 1 / sqrt(variance + epsilon) if `inverted`.
template <class T>
void normalise(const Groups& g, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias, float epsilon,
               bool inverted, DenseTensor& y, DenseTensor& mean, DenseTensor& variance) {
  using S = Statistic<T>;
  const int64_t channels = g.groups * g.channels;
  const std::vector<double> factors = affine_of(scale, channels, 1.0), offsets = affine_of(bias, channels, 0.0);
  const T* const from = x.data<T>();
  T* const to = y.data<T>();
  parallel_for(g.count(), 4 * g.channels * g.places, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const bool empty = g.channels * g.places == 0;
      const double center =
          empty ? 0 : group_sum(g, i, [=](int64_t e, int64_t) { return value_at(from, e); }) / g.elements();
      const auto square = [=](int64_t e, int64_t) {
        return (value_at(from, e) - center) * (value_at(from, e) - center);
      };
      const double spread = empty ? 0 : group_sum(g, i, square) / g.elements();
      const double inverse = 1.0 / std::sqrt(spread + static_cast<double>(epsilon));
      for (int64_t r = 0; r < g.runs(); ++r) {
        const int64_t begin = g.run(i, r);
        for (int64_t e = 0; e < g.length(); ++e) {
          const auto c = static_cast<size_t>(g.channel(i, r, e));
          to[begin + e] = from_double<T>((value_at(from, begin + e) - center) * inverse * factors[c] + offsets[c]);
        }
      }
      mean.data<S>()[i] = static_cast<S>(center);
      variance.data<S>()[i] = static_cast<S>(inverted ? inverse : spread);
    }
  });
}

/// Adds up for each channel over the batch, in its order, and writes, unless `out` is absent. `sums` has a row for each
/// image.
void write_channel_sums(const std::vector<double>& sums, int64_t batch, int64_t channels, DenseTensor& out) {
  if (!out.defined()) return;
  visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t n = 0; n < batch; ++n) sum += sums[static_cast<size_t>(n * channels + c)];
      out.data<T>()[c] = from_double<T>(sum);
    }
  });
}

/// With n = (x - mean) * inverse and h = y_grad * scale: x_grad = (h - mean(h) - n * mean(h * n)) * inverse.
template <class T, class Inverse>
void normalise_grad(const Groups& g, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& mean,
                    const Inverse& inverse_of, const DenseTensor& y_grad, DenseTensor& x_grad, DenseTensor& scale_grad,
                    DenseTensor& bias_grad) {
  using S = Statistic<T>;
  const int64_t channels = g.groups * g.channels;
  const std::vector<double> factors = affine_of(scale, channels, 1.0);
  const double* const factor = factors.data();
  const T *const from = x.data<T>(), *const grad = y_grad.data<T>();
  T* const to = x_grad.data<T>();
  std::vector<double> scale_sums(static_cast<size_t>(g.batch * channels)), bias_sums(scale_sums.size());
  parallel_for(g.count(), 8 * g.channels * g.places, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const double center = static_cast<double>(mean.data<S>()[i]), inverse = inverse_of(i);
      const auto normal = [=](int64_t e) { return (value_at(from, e) - center) * inverse; };
      const double along =
          group_sum(g, i, [=](int64_t e, int64_t c) { return value_at(grad, e) * factor[c]; }) / g.elements();
      const double across =
          group_sum(g, i, [=](int64_t e, int64_t c) { return value_at(grad, e) * factor[c] * normal(e); }) /
          g.elements();
      const int64_t row = i / g.groups * channels;
      for (int64_t r = 0; r < g.runs(); ++r) {
        const int64_t begin = g.run(i, r);
        for (int64_t e = 0; e < g.length(); ++e) {
          const int64_t c = g.channel(i, r, e);
          const double value = value_at(grad, begin + e), n = normal(begin + e);
          scale_sums[static_cast<size_t>(row + c)] += value * n;
          bias_sums[static_cast<size_t>(row + c)] += value;
          to[begin + e] = from_double<T>((value * factor[c] - along - n * across) * inverse);
        }
      }
    }
  });
  write_channel_sums(scale_sums, g.batch, channels, scale_grad);
  write_channel_sums(bias_sums, g.batch, channels, bias_grad);
}

bool channels_last(const std::string& data_format) { return data_format[1] != 'C'; }

template <class T>
void group_norm(const OpContext&, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                float epsilon, int groups, const std::string& data_format, DenseTensor& y, DenseTensor& mean,
                DenseTensor& variance) {
  normalise<T>(groups_of(x, groups, channels_last(data_format)), x, scale, bias, epsilon, false, y, mean, variance);
}

template <class T>
void instance_norm(const OpContext&, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& bias,
                   float epsilon, DenseTensor& y, DenseTensor& saved_mean, DenseTensor& saved_variance) {
  normalise<T>(groups_of(x, x.dims()[1], false), x, scale, bias, epsilon, true, y, saved_mean, saved_variance);
}

template <class T>
void group_norm_grad(const OpContext&, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& mean, const DenseTensor& variance, const DenseTensor& y_grad, float epsilon,
                     int groups, const std::string& data_format, DenseTensor& x_grad, DenseTensor& scale_grad,
                     DenseTensor& bias_grad) {
  const auto inverse = [&](int64_t i) {
    return 1.0 / std::sqrt(static_cast<double>(variance.data<Statistic<T>>()[i]) + static_cast<double>(epsilon));
  };
  normalise_grad<T>(groups_of(x, groups, channels_last(data_format)), x, scale, mean, inverse, y_grad, x_grad,
                    scale_grad, bias_grad);
}

template <class T>
void instance_norm_grad(const OpContext&, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                        const DenseTensor& saved_mean, const DenseTensor& saved_variance, const DenseTensor& y_grad,
                        DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  const auto inverse = [&](int64_t i) { return static_cast<double>(saved_variance.data<Statistic<T>>()[i]); };
  normalise_grad<T>(groups_of(x, x.dims()[1], false), x, scale, saved_mean, inverse, y_grad, x_grad, scale_grad,
                    bias_grad);
}

void register_image_norm_for_target() {
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
