// CPU kernels of optimiser steps and of loss scaling. They run in place: every output is exactly its
// input.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/optim.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/lists.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

double number_of(const DenseTensor& x, int64_t i = 0) {
  return visit_dtype(x.dtype(),
                     [&]<class T>(TypeTag<T>) { return static_cast<double>(static_cast<Compute<T>>(x.data<T>()[i])); });
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

/// The elements of a state of an optimiser, which are stored as S and computed with as C.
template <class S, class C>
struct State {
  S* data;
  C operator[](int64_t i) const { return static_cast<C>(data[i]); }
  /// Returns `value` as it was before it is rounded to S.
  C set(int64_t i, C value) const {
    data[i] = S(static_cast<Compute<S>>(value));
    return value;
  }
};

/// Calls update(states...) with the states of a parameter of T, all of which have its dtype or all
/// float32.
template <class T, class Update, class... Tensors>
void with_states(const Update& update, Tensors&... states) {
  using C = Compute<T>;
  if ((... && (states.dtype() == dtype_of<T>))) update(State<T, C>{states.template data<T>()}...);
  else update(State<float, C>{states.template data<float>()}...);
}

template <class T>
void momentum(const OpContext&, const DenseTensor&, const DenseTensor& grad, const DenseTensor&,
              const DenseTensor& learning_rate, const DenseTensor&, float mu, bool use_nesterov,
              const std::string& regularization_method, float regularization_coeff, bool multi_precision,
              float rescale_grad, DenseTensor& param, DenseTensor& velocity, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate)), keep = static_cast<C>(mu);
  const C factor = static_cast<C>(rescale_grad);
  const bool decays = !regularization_method.empty();
  const C decay = static_cast<C>(regularization_coeff);
  const C ahead = use_nesterov ? keep : C(0), now = use_nesterov ? C(1) : C(0);
  const T* slope = grad.data<T>();
  with_states<T>(
      [&](auto speed) {
        update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
          const C g = factor * static_cast<C>(slope[i]) + (decays ? decay * value : C(0));
          const C v = speed.set(i, keep * speed[i] + g);
          return value - rate * (use_nesterov ? now * g + ahead * v : v);
        });
      },
      velocity);
}

template <class T>
void rmsprop(const OpContext&, const DenseTensor&, const DenseTensor&, const DenseTensor& grad, const DenseTensor&,
             const DenseTensor& learning_rate, const DenseTensor&, const DenseTensor&, float epsilon, float decay,
             float momentum, bool centered, bool multi_precision, DenseTensor& param, DenseTensor& moment,
             DenseTensor& mean_square, DenseTensor& mean_grad, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate)), small = static_cast<C>(epsilon);
  const C keep = static_cast<C>(decay), inertia = static_cast<C>(momentum);
  const T* slope = grad.data<T>();
  const auto update = [&](auto square, auto speed, auto... mean) {
    update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
      const C g = static_cast<C>(slope[i]);
      C variance = square.set(i, keep * square[i] + (C(1) - keep) * g * g);
      const C average = (C(0) + ... + mean.set(i, keep * mean[i] + (C(1) - keep) * g));  // 0 unless centered
      variance -= average * average;
      return value - speed.set(i, inertia * speed[i] + rate * g / std::sqrt(variance + small));
    });
  };
  if (centered) with_states<T>(update, mean_square, moment, mean_grad);
  else with_states<T>(update, mean_square, moment);
}

template <class T>
void adagrad(const OpContext&, const DenseTensor&, const DenseTensor& grad, const DenseTensor&,
             const DenseTensor& learning_rate, const DenseTensor&, float epsilon, bool multi_precision,
             DenseTensor& param, DenseTensor& moment, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate)), small = static_cast<C>(epsilon);
  const T* slope = grad.data<T>();
  with_states<T>(
      [&](auto squares) {
        update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
          const C g = static_cast<C>(slope[i]);
          return value - rate * g / (std::sqrt(squares.set(i, squares[i] + g * g)) + small);
        });
      },
      moment);
}

template <class T>
void adadelta(const OpContext&, const DenseTensor&, const DenseTensor& grad, const DenseTensor&, const DenseTensor&,
              const DenseTensor& learning_rate, const DenseTensor&, float rho, float epsilon, bool multi_precision,
              DenseTensor& param, DenseTensor& squared_grad, DenseTensor& squared_update, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate)), keep = static_cast<C>(rho);
  const C small = static_cast<C>(epsilon);
  const T* slope = grad.data<T>();
  with_states<T>(
      [&](auto squares, auto updates) {
        update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
          const C g = static_cast<C>(slope[i]);
          const C square = squares.set(i, keep * squares[i] + (C(1) - keep) * g * g);
          const C update = g * std::sqrt((updates[i] + small) / (square + small));
          updates.set(i, keep * updates[i] + (C(1) - keep) * update * update);
          return value - rate * update;
        });
      },
      squared_grad, squared_update);
}

template <class T>
void adamax(const OpContext&, const DenseTensor&, const DenseTensor& grad, const DenseTensor& learning_rate,
            const DenseTensor&, const DenseTensor&, const DenseTensor& beta1_pow, const DenseTensor&, float beta1,
            float beta2, float epsilon, bool multi_precision, DenseTensor& param, DenseTensor& moment,
            DenseTensor& inf_norm, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate) / (1.0 - number_of(beta1_pow)));
  const C keep = static_cast<C>(beta1), shrink = static_cast<C>(beta2), small = static_cast<C>(epsilon);
  const T* slope = grad.data<T>();
  with_states<T>(
      [&](auto mean, auto largest) {
        update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
          const C g = static_cast<C>(slope[i]);
          const C m = mean.set(i, keep * mean[i] + (C(1) - keep) * g);
          return value - rate * m / largest.set(i, Larger()(std::abs(g), shrink * largest[i] + small));
        });
      },
      moment, inf_norm);
}

template <class T>
void asgd(const OpContext&, const DenseTensor&, const DenseTensor& grad, const DenseTensor& learning_rate,
          const DenseTensor&, const DenseTensor&, const DenseTensor& n, const DenseTensor&, bool multi_precision,
          DenseTensor& param, DenseTensor& d, DenseTensor& y, DenseTensor& master_param) {
  using C = Compute<T>;
  const C rate = static_cast<C>(number_of(learning_rate) / number_of(n));
  const T* slope = grad.data<T>();
  with_states<T>(
      [&](auto sum, auto last) {
        update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
          const C g = static_cast<C>(slope[i]), total = sum.set(i, sum[i] - last[i] + g);
          last.set(i, g);
          return value - rate * total;
        });
      },
      d, y);
}

template <class T>
void rprop(const OpContext&, const DenseTensor&, const DenseTensor& grad, const DenseTensor&, const DenseTensor&,
           const DenseTensor&, const DenseTensor& learning_rate_range, const DenseTensor& etas, bool multi_precision,
           DenseTensor& param, DenseTensor& prev, DenseTensor& learning_rate, DenseTensor& master_param) {
  using C = Compute<T>;
  const C slowest = static_cast<C>(number_of(learning_rate_range, 0));
  const C fastest = static_cast<C>(number_of(learning_rate_range, 1));
  const C slower = static_cast<C>(number_of(etas, 0)), faster = static_cast<C>(number_of(etas, 1));
  const T* slope = grad.data<T>();
  with_states<T>(
      [&](auto last, auto rates) {
        update_param<T>(multi_precision, param, master_param, [=](int64_t i, C value) {
          const C g = static_cast<C>(slope[i]), before = last[i], rate = rates[i];
          const bool agrees = (g > C(0) && before > C(0)) || (g < C(0) && before < C(0));
          const bool differs = (g > C(0) && before < C(0)) || (g < C(0) && before > C(0));
          const C next = agrees ? std::min(rate * faster, fastest) : differs ? std::max(rate * slower, slowest) : rate;
          const C used = last.set(i, differs ? C(0) : g);
          rates.set(i, next);
          return value - (used > C(0) ? next : used < C(0) ? -next : used);
        });
      },
      prev, learning_rate);
}

/// The constants of a step of lamb_.
template <class C>
struct LambStep {
  C beta1, beta2, epsilon, decay, correction1, correction2;
};

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

/// The squares of the two norms of lamb_.
constexpr size_t kNorms = 2;

using Tensors = std::span<const DenseTensor>;
using Outputs = std::span<DenseTensor>;

/// The update of a parameter by lamb_, kept until the norms of all ranks are known, which scale it.
template <class T>
struct LambUpdate {
  using C = Compute<T>;
  std::unique_ptr<C[]> values;

  /// Advances the moments and makes the update. Adds the squares of value and update to `norms`: the sums of a parameter
  /// are made of those of chunks, so that they do not depend on the threads.
  template <class V, class Mean, class Square>
  void advance(const V* of, const T* slope, int64_t n, Mean mean, Square square, const LambStep<C>& step,
               double* norms) {
    const int64_t chunks = (n + kGrain - 1) / kGrain;
    values = std::make_unique_for_overwrite<C[]>(static_cast<size_t>(n));
    std::vector<std::array<double, kNorms>> sums(static_cast<size_t>(chunks));
    parallel_for(chunks, 8 * kGrain, [&](int64_t first, int64_t last) {
      const LambStep<C> s = step;
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t begin = chunk * kGrain, count = std::min(kGrain, n - begin);
        const V* value = of + begin;
        C* const update = values.get() + begin;
        for (int64_t i = 0; i < count; ++i) {
          const C g = static_cast<C>(slope[begin + i]);
          const C m1 = mean.set(begin + i, s.beta1 * mean[begin + i] + (C(1) - s.beta1) * g);
          const C m2 = square.set(begin + i, s.beta2 * square[begin + i] + (C(1) - s.beta2) * g * g);
          const C decayed = s.decay == C(0) ? C(0) : s.decay * static_cast<C>(value[i]);
          update[i] = m1 * s.correction1 / (std::sqrt(m2 * s.correction2) + s.epsilon) + decayed;
        }
        const auto squares = [&](const auto* x) {
          return sum_of<double>(count, [=](int64_t i) {
            const double v = static_cast<double>(static_cast<C>(x[i]));
            return v * v;
          });
        };
        sums[static_cast<size_t>(chunk)] = {squares(value), squares(update)};
      }
    });
    for (const auto& sum : sums) {
      for (size_t k = 0; k < kNorms; ++k) norms[k] += sum[k];
    }
  }
};

/// The steps of a list of parameters. Ranks combine the norms of all of them at once, over the axes that shard any: along
/// an axis that does not shard a parameter each rank counts it, in both of its norms alike, so that their ratio stays.
template <class T>
void merged_lamb(const OpContext& ctx, Tensors, Tensors grad, Tensors learning_rate, Tensors, Tensors, Tensors, Tensors,
                 Tensors, Tensors skip_update, float weight_decay, float beta1, float beta2, float epsilon,
                 bool always_adapt, bool multi_precision, Outputs param, Outputs moment1, Outputs moment2,
                 Outputs beta1_pow, Outputs beta2_pow, Outputs master_param) {
  using C = Compute<T>;
  const auto skips = [&](size_t i) {
    const DenseTensor& flag = entry_of(skip_update, i);
    return flag.defined() && *flag.data<bool>();
  };
  DenseTensor norms = DenseTensor::allocate(kCpu, {Dims{static_cast<int64_t>(param.size()), kNorms}, DType::float64});
  double* const all = norms.data<double>();
  std::fill_n(all, norms.numel(), 0.0);
  std::vector<LambUpdate<T>> updates(param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    if (skips(i)) continue;
    const LambStep<C> step{static_cast<C>(beta1),
                           static_cast<C>(beta2),
                           static_cast<C>(epsilon),
                           static_cast<C>(weight_decay),
                           static_cast<C>(1.0 / (1.0 - number_of(beta1_pow[i]))),
                           static_cast<C>(1.0 / (1.0 - number_of(beta2_pow[i])))};
    const auto advance = [&](const auto* values, auto mean, auto square) {
      updates[i].advance(values, grad[i].data<T>(), param[i].numel(), mean, square, step, all + i * kNorms);
    };
    with_states<T>(
        [&](auto mean, auto square) {
          if (multi_precision) advance(master_param[i].data<float>(), mean, square);
          else advance(param[i].data<T>(), mean, square);
        },
        moment1[i], moment2[i]);
  }
  ctx.all_reduce(norms, ReduceType::sum);
  for (size_t i = 0; i < param.size(); ++i) {
    if (skips(i)) continue;
    const double of_value = all[i * kNorms], of_update = all[i * kNorms + 1];
    const bool adapts = (weight_decay > 0 || always_adapt) && of_value > 0 && of_update > 0;
    const C rate =
        static_cast<C>(number_of(entry_of(learning_rate, i)) * (adapts ? std::sqrt(of_value / of_update) : 1.0));
    const C* const update = updates[i].values.get();
    update_param<T>(multi_precision, param[i], entry_of(master_param, i),
                    [=](int64_t k, C value) { return value - rate * update[k]; });
    set_number(beta1_pow[i], number_of(beta1_pow[i]) * static_cast<double>(beta1));
    set_number(beta2_pow[i], number_of(beta2_pow[i]) * static_cast<double>(beta2));
  }
}

void merged_lamb_dry(const OpContext& ctx, Tensors param, Tensors, Tensors, Tensors, Tensors, Tensors, Tensors, Tensors,
                     Tensors, float, float, float, float, bool, bool, Outputs, Outputs, Outputs, Outputs, Outputs,
                     Outputs) {
  dry_all_reduce(ctx, {Dims{static_cast<int64_t>(param.size()), kNorms}, DType::float64}, ReduceType::sum);
}

template <class T>
void merged_momentum(const OpContext& ctx, std::span<const DenseTensor> param, std::span<const DenseTensor> grad,
                     std::span<const DenseTensor> velocity, std::span<const DenseTensor> learning_rate,
                     std::span<const DenseTensor> master_param, float mu, bool use_nesterov,
                     const std::vector<std::string>& regularization_method,
                     const std::vector<float>& regularization_coeff, bool multi_precision, float rescale_grad,
                     std::span<DenseTensor> param_out, std::span<DenseTensor> velocity_out,
                     std::span<DenseTensor> master_param_out) {
  for (size_t i = 0; i < param.size(); ++i) {
    const bool decays = !regularization_method.empty();
    momentum<T>(ctx, param[i], grad[i], velocity[i], entry_of(learning_rate, i), entry_of(master_param, i), mu,
                use_nesterov, decays ? regularization_method[i] : "", decays ? regularization_coeff[i] : 0.0f,
                multi_precision, rescale_grad, param_out[i], velocity_out[i], entry_of(master_param_out, i));
  }
}

/// adamw of each parameter of a list. One learning rate is enough for all.
template <class T>
void adamw_of_each(const OpContext& ctx, std::span<const DenseTensor> param, std::span<const DenseTensor> grad,
                   std::span<const DenseTensor> learning_rate, std::span<const DenseTensor> moment1,
                   std::span<const DenseTensor> moment2, std::span<const DenseTensor> beta1_pow,
                   std::span<const DenseTensor> beta2_pow, std::span<const DenseTensor> master_param,
                   const DenseTensor& skip_update, const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon,
                   float coeff, bool with_decay, bool multi_precision, bool use_global_beta_pow,
                   std::span<DenseTensor> param_out, std::span<DenseTensor> moment1_out,
                   std::span<DenseTensor> moment2_out, std::span<DenseTensor> beta1_pow_out,
                   std::span<DenseTensor> beta2_pow_out, std::span<DenseTensor> master_param_out) {
  for (size_t i = 0; i < param.size(); ++i) {
    adamw<T>(ctx, param[i], grad[i], entry_of(learning_rate, i), moment1[i], moment2[i], beta1_pow[i], beta2_pow[i],
             entry_of(master_param, i), skip_update, beta1, beta2, epsilon, 1.0f, coeff, with_decay, multi_precision,
             use_global_beta_pow, param_out[i], moment1_out[i], moment2_out[i], beta1_pow_out[i], beta2_pow_out[i],
             entry_of(master_param_out, i));
  }
}

template <class T>
void merged_adam(const OpContext& ctx, std::span<const DenseTensor> param, std::span<const DenseTensor> grad,
                 std::span<const DenseTensor> learning_rate, std::span<const DenseTensor> moment1,
                 std::span<const DenseTensor> moment2, std::span<const DenseTensor> beta1_pow,
                 std::span<const DenseTensor> beta2_pow, std::span<const DenseTensor> master_param, const Scalar& beta1,
                 const Scalar& beta2, const Scalar& epsilon, bool multi_precision, bool use_global_beta_pow,
                 std::span<DenseTensor> param_out, std::span<DenseTensor> moment1_out,
                 std::span<DenseTensor> moment2_out, std::span<DenseTensor> beta1_pow_out,
                 std::span<DenseTensor> beta2_pow_out, std::span<DenseTensor> master_param_out) {
  adamw_of_each<T>(ctx, param, grad, learning_rate, moment1, moment2, beta1_pow, beta2_pow, master_param, DenseTensor(),
                   beta1, beta2, epsilon, 0.0f, false, multi_precision, use_global_beta_pow, param_out, moment1_out,
                   moment2_out, beta1_pow_out, beta2_pow_out, master_param_out);
}

template <class T>
void fused_adam(const OpContext& ctx, std::span<const DenseTensor> param, std::span<const DenseTensor> grad,
                const DenseTensor& learning_rate, std::span<const DenseTensor> moment1,
                std::span<const DenseTensor> moment2, std::span<const DenseTensor> beta1_pow,
                std::span<const DenseTensor> beta2_pow, std::span<const DenseTensor> master_param,
                const DenseTensor& skip_update, const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon, int,
                float weight_decay, bool use_adamw, bool multi_precision, bool use_global_beta_pow,
                std::span<DenseTensor> param_out, std::span<DenseTensor> moment1_out,
                std::span<DenseTensor> moment2_out, std::span<DenseTensor> beta1_pow_out,
                std::span<DenseTensor> beta2_pow_out, std::span<DenseTensor> master_param_out) {
  adamw_of_each<T>(ctx, param, grad, {&learning_rate, 1}, moment1, moment2, beta1_pow, beta2_pow, master_param,
                   skip_update, beta1, beta2, epsilon, weight_decay, use_adamw, multi_precision, use_global_beta_pow,
                   param_out, moment1_out, moment2_out, beta1_pow_out, beta2_pow_out, master_param_out);
}

template <class T>
void check_finite_and_unscale(const OpContext& ctx, std::span<const DenseTensor> x, const DenseTensor& scale,
                              std::span<DenseTensor> out, DenseTensor& found_infinite) {
  using C = Compute<T>;
  const C factor = static_cast<C>(1.0 / number_of(scale));
  std::atomic<bool> found = false;
  for (size_t k = 0; k < x.size(); ++k) {
    const T* from = x[k].data<T>();
    T* to = out[k].data<T>();
    parallel_for(x[k].numel(), 1, [&](int64_t begin, int64_t end) {
      bool finite = true;
      for (int64_t i = begin; i < end; ++i) {
        const C value = static_cast<C>(from[i]);
        finite &= std::abs(value) <= std::numeric_limits<C>::max();
        to[i] = T(value * factor);
      }
      if (!finite) found = true;
    });
  }
  *found_infinite.data<bool>() = found;
  ctx.all_reduce(found_infinite, ReduceType::any);
}

void check_finite_and_unscale_dry(const OpContext& ctx, std::span<const DenseTensor>, const DenseTensor&,
                                  std::span<DenseTensor>, DenseTensor&) {
  dry_all_reduce(ctx, {Dims{1}, DType::boolean}, ReduceType::any);
}

template <class T>
void update_loss_scaling(const OpContext&, std::span<const DenseTensor>, const DenseTensor& found_infinite,
                         const DenseTensor&, const DenseTensor&, const DenseTensor&, int incr_every_n_steps,
                         int decr_every_n_nan_or_inf, float incr_ratio, float decr_ratio, const Scalar& stop_update,
                         std::span<DenseTensor> out, DenseTensor& loss_scaling, DenseTensor& good_steps,
                         DenseTensor& bad_steps) {
  const bool found = *found_infinite.data<bool>();
  if (found) {
    for (DenseTensor& x : out) std::fill_n(x.data<T>(), x.numel(), T(0.0f));
  }
  if (stop_update.to<bool>()) return;
  int32_t& counted = *(found ? bad_steps : good_steps).data<int32_t>();
  *(found ? good_steps : bad_steps).data<int32_t>() = 0;
  if (++counted < (found ? decr_every_n_nan_or_inf : incr_every_n_steps)) return;
  counted = 0;
  const double scale = number_of(loss_scaling);
  if (found) {
    set_number(loss_scaling, std::max(scale * static_cast<double>(decr_ratio), 1.0));
  } else {
    set_number(loss_scaling, scale * static_cast<double>(incr_ratio));
    if (!std::isfinite(number_of(loss_scaling))) set_number(loss_scaling, scale);
  }
}

void register_optim_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sgd", kBackend, dtype_of<T>, &sgd<T>);
    register_kernel("adamw", kBackend, dtype_of<T>, &adamw<T>);
    register_kernel("adam", kBackend, dtype_of<T>, &adam<T>);
    register_kernel("momentum", kBackend, dtype_of<T>, &momentum<T>);
    register_kernel("merged_momentum", kBackend, dtype_of<T>, &merged_momentum<T>);
    register_kernel("merged_adam", kBackend, dtype_of<T>, &merged_adam<T>);
    register_kernel("fused_adam", kBackend, dtype_of<T>, &fused_adam<T>);
    register_kernel("rmsprop", kBackend, dtype_of<T>, &rmsprop<T>);
    register_kernel("adagrad", kBackend, dtype_of<T>, &adagrad<T>);
    register_kernel("adadelta", kBackend, dtype_of<T>, &adadelta<T>);
    register_kernel("adamax", kBackend, dtype_of<T>, &adamax<T>);
    register_kernel("asgd", kBackend, dtype_of<T>, &asgd<T>);
    register_kernel("rprop", kBackend, dtype_of<T>, &rprop<T>);
    register_kernel("lamb", kBackend, dtype_of<T>, &OfOne<&merged_lamb<T>>::run);
    register_kernel("merged_lamb", kBackend, dtype_of<T>, &merged_lamb<T>);
    register_kernel("merged_sgd", kBackend, dtype_of<T>, &OfEach<&sgd<T>>::run);
    register_kernel("merged_rmsprop", kBackend, dtype_of<T>, &OfEach<&rmsprop<T>>::run);
    register_kernel("merged_adagrad", kBackend, dtype_of<T>, &OfEach<&adagrad<T>>::run);
    register_kernel("merged_adadelta", kBackend, dtype_of<T>, &OfEach<&adadelta<T>>::run);
    register_kernel("merged_adamax", kBackend, dtype_of<T>, &OfEach<&adamax<T>>::run);
    register_kernel("merged_asgd", kBackend, dtype_of<T>, &OfEach<&asgd<T>>::run);
    register_kernel("merged_rprop", kBackend, dtype_of<T>, &OfEach<&rprop<T>>::run);
    register_kernel("check_finite_and_unscale", kBackend, dtype_of<T>, &check_finite_and_unscale<T>);
    register_kernel("update_loss_scaling", kBackend, dtype_of<T>, &update_loss_scaling<T>);
  });
  register_dry_kernel("lamb", &OfOne<&merged_lamb_dry>::run);
  register_dry_kernel("merged_lamb", &merged_lamb_dry);
  register_dry_kernel("check_finite_and_unscale", &check_finite_and_unscale_dry);
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
