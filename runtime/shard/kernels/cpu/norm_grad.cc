// CPU kernels of the gradients of layer_norm, rms_norm and batch_norm. The forward kernels are in
// norm.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/norm_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/half_lines.h"
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

  /// As below, to the places in a gradient that is not sharded of the elements that are here; other
  /// ranks have the others.
  void write(const OpContext& ctx, const NormRows& shape, DenseTensor& out) const {
    if (!out.defined() || ctx.reducer() == nullptr) return write(out);
    DenseTensor mine = DenseTensor::allocate(kCpu, {Dims{width_}, out.dtype()});
    write(mine);
    visit_dtype(out.dtype(), [&]<class T>(TypeTag<T>) {
      if (width_ != out.numel()) std::fill_n(out.data<T>(), out.numel(), T());
      for (int64_t i = 0; i < width_; ++i)
        out.data<T>()[shape.positions.empty() ? i : shape.positions[static_cast<size_t>(i)]] = mine.data<T>()[i];
    });
    ctx.all_reduce(out, ReduceType::sum);
  }
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
/// The means are combined where other ranks hold parts of the rows.
template <class T>
void layer_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor&,
                     const DenseTensor& mean, const DenseTensor& variance, const DenseTensor& out_grad, float epsilon,
                     int begin_norm_axis, DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  using C = Compute<T>;
  using S = Statistic<T>;
  const NormRows shape(x.dims(), ctx.input_box(0, x),
                       normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, x.dims().rank()));
  const int64_t rows = shape.rows, width = shape.width;
  const std::vector<double> factors = shape.affine(scale, 1.0);
  const double* factor = factors.data();
  const auto inverse_of = [&](int64_t r) {
    return 1.0 / std::sqrt(static_cast<double>(variance.data<S>()[r]) + static_cast<double>(epsilon));
  };
  const auto row_of = [&](const DenseTensor& tensor, int64_t r) {
    return WideLine<T>(tensor.data<T>() + r * width, width);
  };
  const auto row_sums = [&](int64_t r, const C* from, const C* grad, double* sums) {
    const double center = static_cast<double>(mean.data<S>()[r]), inverse = inverse_of(r);
    sums[0] = sum_of<double>(width, [=](int64_t i) { return value_at(grad, i) * factor[i]; });
    sums[1] = sum_of<double>(
        width, [=](int64_t i) { return value_at(grad, i) * factor[i] * ((value_at(from, i) - center) * inverse); });
  };
  const bool wants_x = x_grad.defined(), wants_sums = scale_grad.defined() || bias_grad.defined();
  DenseTensor all;
  if (ctx.reducer() != nullptr && wants_x) {
    all = shape.sums(
        ctx, 2, [&](int64_t r, double* sums) { row_sums(r, row_of(x, r).get(), row_of(out_grad, r).get(), sums); });
  }
  ColumnSums for_scale(rows, width), for_bias(rows, width);
  parallel_for(for_scale.blocks(), 8 * ColumnSums::kRows * width, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      double *scale_sums = for_scale.of(block), *bias_sums = for_bias.of(block);
      for (int64_t r = for_scale.begin(block); r < for_scale.end(block); ++r) {
        const WideLine<T> x_row = row_of(x, r), grad_row = row_of(out_grad, r);
        const C *const from = x_row.get(), *const grad = grad_row.get();
        const double center = static_cast<double>(mean.data<S>()[r]), inverse = inverse_of(r);
        for (int64_t i = 0; wants_sums && i < width; ++i) {
          const double g = value_at(grad, i);
          scale_sums[i] += g * ((value_at(from, i) - center) * inverse);
          bias_sums[i] += g;
        }
        if (!wants_x) continue;
        double sums[2];
        if (all.defined()) std::copy_n(all.data<double>() + 2 * r, 2, sums);
        else row_sums(r, from, grad, sums);
        const double along = sums[0] / static_cast<double>(shape.whole_width),
                     across = sums[1] / static_cast<double>(shape.whole_width);
        write_line(x_grad.data<T>() + r * width, width, [=](int64_t i) {
          const double normal = (value_at(from, i) - center) * inverse;
          return static_cast<C>((value_at(grad, i) * factor[i] - along - normal * across) * inverse);
        });
      }
    }
  });
  for_scale.write(ctx, shape, scale_grad);
  for_bias.write(ctx, shape, bias_grad);
}

void layer_norm_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&,
                         const DenseTensor&, const DenseTensor&, const DenseTensor&, float, int begin_norm_axis,
                         DenseTensor& x_grad, DenseTensor& scale_grad, DenseTensor& bias_grad) {
  const int begin = normalize_axis(ctx.op, "begin_norm_axis", begin_norm_axis, x.dims().rank());
  if (x_grad.defined()) dry_all_reduce(ctx, {Dims{x.dims().numel(0, begin), 2}, DType::float64}, ReduceType::sum);
  for (const DenseTensor* grad : {&scale_grad, &bias_grad}) {
    if (grad->defined()) dry_all_reduce(ctx, grad->meta(), ReduceType::sum);
  }
}

/// With n = x * invvar and h = out_grad * scale: x_grad = (h - n * mean(h * n)) * invvar. The mean is
/// combined where other ranks hold parts of the rows.
template <class T>
void rms_norm_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& scale, const DenseTensor& invvar,
                   const DenseTensor& out_grad, DenseTensor& x_grad, DenseTensor& scale_grad) {
  using C = Compute<T>;
  using S = Statistic<T>;
  const NormRows shape(x.dims(), ctx.input_box(0, x), x.dims().rank() - 1);
  const int64_t width = shape.width;
  const std::vector<double> factors = affine_of(scale, width, 1.0);
  const double* factor = factors.data();
  const auto row_of = [&](const DenseTensor& tensor, int64_t r) {
    return WideLine<T>(tensor.data<T>() + r * width, width);
  };
  const auto row_sum = [&](int64_t r, const C* from, const C* grad, double* sum) {
    const double inverse = static_cast<double>(invvar.data<S>()[r]);
    *sum =
        sum_of<double>(width, [=](int64_t i) { return value_at(grad, i) * value_at(from, i) * inverse * factor[i]; });
  };
  const bool wants_x = x_grad.defined(), wants_scale = scale_grad.defined();
  DenseTensor all;
  if (ctx.reducer() != nullptr && wants_x) {
    all = shape.sums(ctx, 1,
                     [&](int64_t r, double* sum) { row_sum(r, row_of(x, r).get(), row_of(out_grad, r).get(), sum); });
  }
  ColumnSums for_scale(shape.rows, width);
  parallel_for(for_scale.blocks(), 6 * ColumnSums::kRows * width, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      double* scale_sums = for_scale.of(block);
      for (int64_t r = for_scale.begin(block); r < for_scale.end(block); ++r) {
        const WideLine<T> x_row = row_of(x, r), grad_row = row_of(out_grad, r);
        const C *const from = x_row.get(), *const grad = grad_row.get();
        const double inverse = static_cast<double>(invvar.data<S>()[r]);
        for (int64_t i = 0; wants_scale && i < width; ++i)
          scale_sums[i] += value_at(grad, i) * value_at(from, i) * inverse;
        if (!wants_x) continue;
        double sum = 0;
        if (all.defined()) sum = all.data<double>()[r];
        else row_sum(r, from, grad, &sum);
        const double across = sum / static_cast<double>(shape.whole_width);
        write_line(x_grad.data<T>() + r * width, width, [=](int64_t i) {
          return static_cast<C>((value_at(grad, i) * factor[i] - value_at(from, i) * inverse * across) * inverse);
        });
      }
    }
  });
  for_scale.write(scale_grad);
}

void rms_norm_grad_dry(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const DenseTensor&,
                       const DenseTensor&, DenseTensor& x_grad, DenseTensor&) {
  if (x_grad.defined())
    dry_all_reduce(ctx, {Dims{x.dims().numel(0, x.dims().rank() - 1), 1}, DType::float64}, ReduceType::sum);
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
  if (!constants) ctx.all_reduce(sums, ReduceType::sum);
  const double *plain = sums.data<double>(), *normal = plain + view.size;
  for (int64_t c = 0; c < view.size; ++c) {
    if (scale_grad.defined()) scale_grad.data<S>()[c] = static_cast<S>(normal[c]);
    if (bias_grad.defined()) bias_grad.data<S>()[c] = static_cast<S>(plain[c]);
  }
  if (!x_grad.defined()) return;
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
  register_dry_kernel("layer_norm_grad", &layer_norm_grad_dry);
  register_dry_kernel("rms_norm_grad", &rms_norm_grad_dry);
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
