// CPU kernels of optimiser steps. They run in place: every output is exactly its input.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/optim.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

double number_of(const DenseTensor& x) {
  return visit_dtype(x.dtype(),
                     [&]<class T>(TypeTag<T>) { return static_cast<double>(static_cast<Compute<T>>(*x.data<T>())); });
}

void set_number(DenseTensor& x, double value) {
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) { *x.data<T>() = T(static_cast<Compute<T>>(value)); });
}

/// Replaces each element of the parameter by step(i, value), in float32 where there is a master copy.
template <class T, class Step>
void update_param(bool multi_precision, DenseTensor& param, DenseTensor& master, const Step& step) {
  using C = Compute<T>;
  parallel_for(param.numel(), 4, [&](int64_t begin, int64_t end) {
    const Step own = step;  // a local copy, which no write can change, so that the loops vectorise
    T* const values = param.data<T>();
    if (multi_precision) {
      float* const exact = master.data<float>();
      for (int64_t i = begin; i < end; ++i) {
        exact[i] = static_cast<float>(own(i, static_cast<C>(exact[i])));
        values[i] = T(static_cast<C>(exact[i]));
      }
    } else {
      for (int64_t i = begin; i < end; ++i) values[i] = T(own(i, static_cast<C>(values[i])));
    }
  });
}

template <class T>
void sgd(const OpContext&, const DenseTensor&, const DenseTensor& learning_rate, const DenseTensor& grad,
         const DenseTensor&, bool multi_precision, DenseTensor& param, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate));
  const T* slope = grad.data<T>();
  update_param<T>(multi_precision, param, master_param,
                  [=](int64_t i, C value) { return value - rate * static_cast<C>(slope[i]); });
}

/// The constants of one AdamW step.
template <class C>
struct AdamwStep {
  C beta1, beta2, epsilon, decay, rate, second_correction;
};

template <class T, class M>
void adamw_update(const AdamwStep<Compute<T>>& s, const DenseTensor& grad, bool multi_precision, DenseTensor& param,
                  DenseTensor& master, DenseTensor& moment1, DenseTensor& moment2) {
  using C = Compute<T>;
  const T* slope = grad.data<T>();
  M *first = moment1.data<M>(), *second = moment2.data<M>();
  update_param<T>(multi_precision, param, master, [=](int64_t i, C value) {
    const C g = static_cast<C>(slope[i]);
    const C m1 = s.beta1 * static_cast<C>(first[i]) + (C(1) - s.beta1) * g;
    const C m2 = s.beta2 * static_cast<C>(second[i]) + (C(1) - s.beta2) * g * g;
    first[i] = M(static_cast<Compute<M>>(m1));
    second[i] = M(static_cast<Compute<M>>(m2));
    return value - s.decay * value - s.rate * (m1 / (std::sqrt(m2) / s.second_correction + s.epsilon));
  });
}

template <class T>
void adamw(const OpContext&, const DenseTensor& param, const DenseTensor& grad, const DenseTensor& learning_rate,
           const DenseTensor& moment1, const DenseTensor&, const DenseTensor& beta1_pow, const DenseTensor& beta2_pow,
           const DenseTensor&, const DenseTensor& skip_update, const Scalar& beta1, const Scalar& beta2,
           const Scalar& epsilon, float lr_ratio, float coeff, bool with_decay, bool multi_precision,
           bool use_global_beta_pow, DenseTensor& param_out, DenseTensor& moment1_out, DenseTensor& moment2_out,
           DenseTensor& beta1_pow_out, DenseTensor& beta2_pow_out, DenseTensor& master_param_out) {
  if (skip_update.defined() && *skip_update.data<bool>()) return;
  using C = Compute<T>;
  const double b1 = beta1.to<double>(), b2 = beta2.to<double>();
  const double power1 = number_of(beta1_pow), power2 = number_of(beta2_pow);
  const double rate = number_of(learning_rate) * static_cast<double>(lr_ratio);
  const AdamwStep<C> step{static_cast<C>(b1),
                          static_cast<C>(b2),
                          epsilon.to<C>(),
                          static_cast<C>(with_decay ? rate * static_cast<double>(coeff) : 0.0),
                          static_cast<C>(rate / (1.0 - power1)),
                          static_cast<C>(std::sqrt(1.0 - power2))};
  const bool wide = moment1.dtype() != param.dtype();
  const auto update = wide ? &adamw_update<T, float> : &adamw_update<T, T>;
  update(step, grad, multi_precision, param_out, master_param_out, moment1_out, moment2_out);
  if (use_global_beta_pow) return;
  set_number(beta1_pow_out, power1 * b1);
  set_number(beta2_pow_out, power2 * b2);
}

template <class T>
void adam(const OpContext& ctx, const DenseTensor& param, const DenseTensor& grad, const DenseTensor& learning_rate,
          const DenseTensor& moment1, const DenseTensor& moment2, const DenseTensor& beta1_pow,
          const DenseTensor& beta2_pow, const DenseTensor& master_param, const DenseTensor& skip_update,
          const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon, bool, int64_t, bool multi_precision,
          bool use_global_beta_pow, DenseTensor& param_out, DenseTensor& moment1_out, DenseTensor& moment2_out,
          DenseTensor& beta1_pow_out, DenseTensor& beta2_pow_out, DenseTensor& master_param_out) {
  adamw<T>(ctx, param, grad, learning_rate, moment1, moment2, beta1_pow, beta2_pow, master_param, skip_update, beta1,
           beta2, epsilon, 1.0f, 0.0f, false, multi_precision, use_global_beta_pow, param_out, moment1_out, moment2_out,
           beta1_pow_out, beta2_pow_out, master_param_out);
}

void register_optim_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sgd", kBackend, dtype_of<T>, &sgd<T>);
    register_kernel("adamw", kBackend, dtype_of<T>, &adamw<T>);
    register_kernel("adam", kBackend, dtype_of<T>, &adam<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_optim_for_target);
void register_optim() { HWY_DYNAMIC_DISPATCH(register_optim_for_target)(); }
}  // namespace shard::cpu
#endif
