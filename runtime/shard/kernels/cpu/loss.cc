// CPU kernels of losses and their gradients. Cross entropies are in softmax.cc.
#include <algorithm>
#include <cmath>
#include <vector>

#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/register_image.h"
#include "shard/kernels/cpu/value.h"

#define SHARD_FORMULA_INLINE inline

namespace shard::cpu {
namespace {

constexpr int64_t kCost = 16;  // of the logarithms of an element

/// out[i] = f(x[i], ..) for tensors of one shape and dtype T, computed in the dtype of sums.
template <class T, class F, class... Tensors>
void map_elements(const F& f, DenseTensor& out, const Tensors&... x) {
  T* const to = out.data<T>();
  parallel_for(out.numel(), kCost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] = T(f(static_cast<Compute<T>>(x.template data<T>()[i])...));
  });
}

#include "shard/kernels/formulas/loss.inc"

template <class C>
struct Epsilon {
  C first;
};

template <class T>
void bce_loss(const OpContext&, const DenseTensor& input, const DenseTensor& label, DenseTensor& out) {
  using C = Compute<T>;
  map_elements<T>([](C x, C y) { return BceLoss::apply(x, y); }, out, input, label);
}

template <class T>
void bce_loss_grad(const OpContext&, const DenseTensor& input, const DenseTensor& label, const DenseTensor& out_grad,
                   DenseTensor& input_grad) {
  using C = Compute<T>;
  map_elements<T>([](C x, C y, C grad) { return BceLossGrad::apply(x, y, grad); }, input_grad, input, label, out_grad);
}

template <class T>
void log_loss(const OpContext&, const DenseTensor& input, const DenseTensor& label, float epsilon, DenseTensor& out) {
  using C = Compute<T>;
  const Epsilon<C> e{static_cast<C>(epsilon)};
  map_elements<T>([=](C x, C y) { return LogLoss::apply(x, y, e); }, out, input, label);
}

template <class T>
void log_loss_grad(const OpContext&, const DenseTensor& input, const DenseTensor& label, const DenseTensor& out_grad,
                   float epsilon, DenseTensor& input_grad) {
  using C = Compute<T>;
  const Epsilon<C> e{static_cast<C>(epsilon)};
  map_elements<T>([=](C x, C y, C grad) { return LogLossGrad::apply(x, y, grad, e); }, input_grad, input, label,
                  out_grad);
}

template <class T>
void huber_loss(const OpContext&, const DenseTensor& input, const DenseTensor& label, float delta, DenseTensor& out,
                DenseTensor& residual) {
  using C = Compute<T>;
  const C d = static_cast<C>(delta);
  T *const loss = out.data<T>(), *const rest = residual.data<T>();
  parallel_for(out.numel(), kCost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const C r = static_cast<C>(label.data<T>()[i]) - static_cast<C>(input.data<T>()[i]);
      rest[i] = T(r);
      loss[i] = T(huber_of(r, d));
    }
  });
}

template <class T>
void huber_loss_grad(const OpContext&, const DenseTensor& input, const DenseTensor& label, const DenseTensor& out_grad,
                     float delta, DenseTensor& input_grad, DenseTensor& label_grad) {
  using C = Compute<T>;
  const C d = static_cast<C>(delta);
  T *const of_input = input_grad.data<T>(), *const of_label = label_grad.data<T>();
  parallel_for(input.numel(), kCost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const C r = static_cast<C>(label.data<T>()[i]) - static_cast<C>(input.data<T>()[i]);
      const C grad = static_cast<C>(out_grad.data<T>()[i]) * huber_slope(r, d);
      of_label[i] = T(grad);
      of_input[i] = T(-grad);
    }
  });
}

void check_labels(const OpContext& ctx, const DenseTensor& label, int64_t classes, int64_t ignore_index) {
  const int64_t wrong = first_where(label.numel(), 2, [&](int64_t i) {
    const int64_t value = integer_at(label, i);
    return value != ignore_index && (value < 0 || value >= classes);
  });
  if (wrong == label.numel()) return;
  fail_check(
      ErrorCode::out_of_range, "{}",
      label_outside_text(ctx.op, ArgumentPlace(ctx, 1, label), wrong, integer_at(label, wrong), classes, ignore_index));
}

/// Element i of the label, whose batch index is i / places, belongs to element `at` of the input.
int64_t place_of(const Dims& input, int64_t i, int64_t label) {
  const int64_t places = input.numel(2, input.rank());
  return (i / places * input[1] + label) * places + i % places;
}

template <class T>
double weight_at(const DenseTensor& weight, int64_t label) {
  return weight.defined() ? static_cast<double>(static_cast<Compute<T>>(weight.data<T>()[label])) : 1.0;
}

/// The sums of losses and of weights.
struct LossSums {
  double loss = 0, weight = 0;
};

/// With a reduction the sums of all shards are added up, and so are their weights. Sums are those of blocks of labels,
/// which do not depend on the number of threads.
template <class T>
void nll_loss(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label, const DenseTensor& weight,
              int64_t ignore_index, const std::string& reduction, DenseTensor& out, DenseTensor& total_weight) {
  using C = Compute<T>;
  constexpr int64_t kBlock = 4096;
  check_labels(ctx, label, input.dims()[1], ignore_index);
  const bool keep = reduction == "none";
  const int64_t count = label.numel(), blocks = (count + kBlock - 1) / kBlock;
  std::vector<LossSums> parts(static_cast<size_t>(blocks));
  parallel_for(blocks, kBlock * 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first * kBlock; i < std::min(last * kBlock, count); ++i) {
      const int64_t at = integer_at(label, i);
      const bool ignored = at == ignore_index;
      const double w = ignored ? 0 : weight_at<T>(weight, at);
      const double loss =
          ignored ? 0 : -w * static_cast<double>(static_cast<C>(input.data<T>()[place_of(input.dims(), i, at)]));
      LossSums& part = parts[static_cast<size_t>(i / kBlock)];
      part.loss += loss;
      part.weight += w;
      if (keep) out.data<T>()[i] = T(static_cast<C>(loss));
    }
  });
  DenseTensor sums = DenseTensor::allocate(kCpu, {Dims{2}, DType::float64});
  double &loss_sum = sums.data<double>()[0] = 0, &weight_sum = sums.data<double>()[1] = 0;
  for (const LossSums& part : parts) {
    loss_sum += part.loss;
    weight_sum += part.weight;
  }
  if (keep) {
    *total_weight.data<Statistic<T>>() = 0;
    return;
  }
  ctx.all_reduce(sums, ReduceType::sum);
  *out.data<T>() = T(static_cast<C>(reduction == "mean" && weight_sum != 0 ? loss_sum / weight_sum : loss_sum));
  *total_weight.data<Statistic<T>>() = static_cast<Statistic<T>>(weight_sum);
}

void nll_loss_dry(const OpContext& ctx, const DenseTensor&, const DenseTensor&, const DenseTensor&, int64_t,
                  const std::string& reduction, DenseTensor&, DenseTensor&) {
  if (reduction != "none") dry_all_reduce(ctx, {Dims{2}, DType::float64}, ReduceType::sum);
}

template <class T>
void nll_loss_grad(const OpContext& ctx, const DenseTensor&, const DenseTensor& label, const DenseTensor& weight,
                   const DenseTensor& total_weight, const DenseTensor& out_grad, int64_t ignore_index,
                   const std::string& reduction, DenseTensor& input_grad) {
  using C = Compute<T>;
  check_labels(ctx, label, input_grad.dims()[1], ignore_index);
  const auto value = [](const DenseTensor& x, int64_t i) {
    return static_cast<double>(static_cast<C>(x.data<T>()[i]));
  };
  const double total = static_cast<double>(*total_weight.data<Statistic<T>>());
  const double divisor = reduction == "mean" && total != 0 ? total : 1;
  T* const to = input_grad.data<T>();
  parallel_for(input_grad.numel(), 1, [&](int64_t first, int64_t last) { std::fill(to + first, to + last, T(C(0))); });
  parallel_for(label.numel(), 4, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = integer_at(label, i);
      if (at == ignore_index) continue;
      const double grad = value(out_grad, reduction == "none" ? i : 0);
      to[place_of(input_grad.dims(), i, at)] = T(static_cast<C>(-grad * weight_at<T>(weight, at) / divisor));
    }
  });
}

}  // namespace

void register_loss() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("bce_loss", kBackend, dtype_of<T>, &bce_loss<T>);
    register_kernel("bce_loss_grad", kBackend, dtype_of<T>, &bce_loss_grad<T>);
    register_kernel("log_loss", kBackend, dtype_of<T>, &log_loss<T>);
    register_kernel("log_loss_grad", kBackend, dtype_of<T>, &log_loss_grad<T>);
    register_kernel("huber_loss", kBackend, dtype_of<T>, &huber_loss<T>);
    register_kernel("huber_loss_grad", kBackend, dtype_of<T>, &huber_loss_grad<T>);
    register_kernel("nll_loss", kBackend, dtype_of<T>, &nll_loss<T>);
    register_kernel("nll_loss_grad", kBackend, dtype_of<T>, &nll_loss_grad<T>);
  });
  register_dry_kernel("nll_loss", &nll_loss_dry);
}

}  // namespace shard::cpu
