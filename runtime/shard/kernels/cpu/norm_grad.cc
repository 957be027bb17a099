// CPU kernels of the gradients of layer_norm, rms_norm and batch_norm. The forward kernels are in
// norm.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/norm_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/norm.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// Sums of columns over rows. Rows are added up in blocks, and blocks in their order, so that a sum
/// has the same bits with any number of threads.
class ColumnSums {
 public:
  static constexpr int64_t kRows = 64;  // of a block

  ColumnSums(int64_t rows, int64_t width) : rows_(rows), width_(width), sums_(static_cast<size_t>(blocks() * width)) {}

  int64_t blocks() const { return (rows_ + kRows - 1) / kRows; }
  int64_t begin(int64_t block) const { return block * kRows; }
  int64_t end(int64_t block) const { return std::min(rows_, (block + 1) * kRows); }
  double* of(int64_t block) { return sums_.data() + block * width_; }

  /// Writes the sums over all blocks, unless `out` is absent.
  void write(DenseTensor& out) const {
    if (!out.defined()) return;
    visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
      parallel_for(width_, blocks(), [&](int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
          double sum = 0;
          for (int64_t block = 0; block < blocks(); ++block) sum += sums_[static_cast<size_t>(block * width_ + c)];
          out.data<T>()[c] = from_double<T>(sum);
        }
      });
    });
  }

 private:
  int64_t rows_, width_;
  std::vector<double> sums_;
};

/// With n = (x - mean) / deviation and h = out_grad * scale: x_grad = (h - mean(h) - n * mean(h * n)) / deviation.
template <class T>
void layer_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& mean, const DenseTensor& variance, const DenseTensor& out_grad, float epsilon,
                     int begin_norm_axis, DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using S = Statistic<T>;
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, x.dims().rank());
  const int64_t rows = x.dims().numel(0, begin), width = x.dims().numel(begin, x.dims().rank());
  const std::vector<double> factors = affine_of(scale, width, 1.0);
  const double* factor = factors.data();
  ColumnSums for_scale(rows, width), for_bias(rows, width);
  parallel_for(for_scale.blocks(), 8 * ColumnSums::kRows * width, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      double *scale_sums = for_scale.of(block), *bias_sums = for_bias.of(block);
      for (int64_t r = for_scale.begin(block); r < for_scale.end(block); ++r) {
        const T *from = x.data<T>() + r * width, *grad = out_grad.data<T>() + r * width;
        T* to = x_grad.data<T>() + r * width;
        const double center = static_cast<double>(mean.data<S>()[r]);
        const double inverse =
            1.0 / std::sqrt(static_cast<double>(variance.data<S>()[r]) + static_cast<double>(epsilon));
        for (int64_t i = 0; i < width; ++i) {
          const double g = value_at(grad, i);
          scale_sums[i] += g * ((value_at(from, i) - center) * inverse);
          bias_sums[i] += g;
        }
        const double along = sum_of<double>(width, [=](int64_t i) { return value_at(grad, i) * factor[i]; }) /
                             static_cast<double>(width);
        const double products = sum_of<double>(
            width, [=](int64_t i) { return value_at(grad, i) * factor[i] * ((value_at(from, i) - center) * inverse); });
        const double across = products / static_cast<double>(width);
        for (int64_t i = 0; i < width; ++i) {
          const double normal = (value_at(from, i) - center) * inverse;
          to[i] = from_double<T>((value_at(grad, i) * factor[i] - along - normal * across) * inverse);
        }
      }
    }
  });
  for_scale.write(scale_grad);
  for_bias.write(bias_grad);
}

/// With n = x * invvar and h = out_grad * scale: x_grad = (h - n * mean(h * n)) * invvar.
template <class T>
void rms_norm_grad(const OpContext&, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& invvar,
                   const DenseTensor& out_grad, DenseTensor& x_grad, DenseTensor& scale_grad) {
  using S = Statistic<T>;
  const int64_t width = x.dims()[x.dims().rank() - 1];
  const std::vector<double> factors = affine_of(scale, width, 1.0);
  const double* factor = factors.data();
  ColumnSums for_scale(invvar.numel(), width);
  parallel_for(for_scale.blocks(), 6 * ColumnSums::kRows * width, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      double* scale_sums = for_scale.of(block);
      for (int64_t r = for_scale.begin(block); r < for_scale.end(block); ++r) {
        const T *from = x.data<T>() + r * width, *grad = out_grad.data<T>() + r * width;
        T* to = x_grad.data<T>() + r * width;
        const double inverse = static_cast<double>(invvar.data<S>()[r]);
        for (int64_t i = 0; i < width; ++i) scale_sums[i] += value_at(grad, i) * value_at(from, i) * inverse;
        const double across =
            sum_of<double>(width,
                           [=](int64_t i) { return value_at(grad, i) * value_at(from, i) * inverse * factor[i]; }) /
            static_cast<double>(width);
        for (int64_t i = 0; i < width; ++i)
          to[i] = from_double<T>((value_at(grad, i) * factor[i] - value_at(from, i) * inverse * across) * inverse);
      }
    }
  });
  for_scale.write(scale_grad);
}

/// Each element's gradient contains sums over the whole batch, which are summed over all ranks.
void batch_norm_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&,
                         const DenseTensor&, const DenseTensor&, const DenseTensor&, const std::string& data_format,
                         bool is_test, bool use_global_stats, bool trainable_statistics, DenseTensor&, DenseTensor&,
                         DenseTensor&) {
  if (takes_given_statistics(is_test, use_global_stats, trainable_statistics)) return;
  dry_all_reduce(ctx, {Dims{2, x.dims()[channel_axis(x, data_format)]}, DType::float64}, ReduceType::sum);
}

/// Per channel the sums of out_grad and of out_grad * (x - mean) / deviation, as [2, channels].
template <class T>
DenseTensor channel_sums(const DenseTensor& x, const DenseTensor& out_grad, const AxisView& view, const double* mean,
                         const double* inverse) {
  DenseTensor sums = DenseTensor::allocate(kCpu, {Dims{2, view.size}, DType::float64});
  double *plain = sums.data<double>(), *normal = plain + view.size;
  parallel_for(view.size, 4 * view.outer * view.inner, [&](int64_t first, int64_t last) {
    std::fill(plain + first, plain + last, 0.0);
    std::fill(normal + first, normal + last, 0.0);
    for (int64_t n = 0; n < view.outer; ++n) {
      for (int64_t c = first; c < last; ++c) {
        const int64_t at = (n * view.size + c) * view.inner;
        const T *from = x.data<T>() + at, *grad = out_grad.data<T>() + at;
        const double center = mean[c], steep = inverse[c];
        plain[c] += sum_of<double>(view.inner, [=](int64_t i) { return value_at(grad, i); });
        normal[c] += sum_of<double>(
            view.inner, [=](int64_t i) { return value_at(grad, i) * ((value_at(from, i) - center) * steep); });
      }
    }
  });
  return sums;
}

/// As layer_norm_grad in each channel; where the statistics are constants, no means are subtracted.
template <class T>
void batch_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& saved_mean, const DenseTensor& saved_variance, const DenseTensor& out_grad,
                     const std::string& data_format, bool is_test, bool use_global_stats, bool trainable_statistics,
                     DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using S = Statistic<T>;
  const int axis = channel_axis(x, data_format);
  const AxisView view = axis_view(x.dims(), axis);
  const bool constants = takes_given_statistics(is_test, use_global_stats, trainable_statistics);
  const std::vector<double> mean = affine_of(saved_mean, view.size, 0.0),
                            inverse = affine_of(saved_variance, view.size, 1.0);
  const std::vector<double> factor = affine_of(scale, view.size, 1.0);
  DenseTensor sums = channel_sums<T>(x, out_grad, view, mean.data(), inverse.data());
  if (!constants && ctx.local != nullptr && ctx.local->reducer != nullptr)
    ctx.local->reducer->all_reduce(sums, ReduceType::sum);
  const double *plain = sums.data<double>(), *normal = plain + view.size;
  for (int64_t c = 0; c < view.size; ++c) {
    if (scale_grad.defined()) scale_grad.data<S>()[c] = static_cast<S>(normal[c]);
    if (bias_grad.defined()) bias_grad.data<S>()[c] = static_cast<S>(plain[c]);
  }
  const Dims global = ctx.input_box(0, x).global;
  double count = 1;
  for (int i = 0; i < global.rank(); ++i) count *= i == axis ? 1.0 : static_cast<double>(global[i]);
  parallel_for(view.outer * view.size, 4 * view.inner, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const auto c = static_cast<size_t>(line % view.size);
      const double along = constants ? 0 : plain[c] / count, across = constants ? 0 : normal[c] / count;
      const double center = mean[c], steep = inverse[c], gain = steep * factor[c];
      const T *from = x.data<T>() + line * view.inner, *grad = out_grad.data<T>() + line * view.inner;
      T* to = x_grad.data<T>() + line * view.inner;
      for (int64_t i = 0; i < view.inner; ++i)
        to[i] = from_double<T>((value_at(grad, i) - along - (value_at(from, i) - center) * steep * across) * gain);
    }
  });
}

void register_norm_grad_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("layer_norm_grad", kBackend, dtype_of<T>, &layer_norm_grad<T>);
    register_kernel("rms_norm_grad", kBackend, dtype_of<T>, &rms_norm_grad<T>);
    register_kernel("batch_norm_grad", kBackend, dtype_of<T>, &batch_norm_grad<T>);
  });
  register_dry_kernel("batch_norm_grad", &batch_norm_grad_dry);
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_norm_grad_for_target);
void register_norm_grad() { HWY_DYNAMIC_DISPATCH(register_norm_grad_for_target)(); }
}  // namespace shard::cpu
#endif
