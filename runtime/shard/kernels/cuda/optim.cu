// Optimisers on CUDA, in place: sgd, momentum, rmsprop, adagrad, adadelta, adamax, asgd, rprop, adam and adamw, of one
// parameter and of lists.
#include "shard/kernels/cuda/optim.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/optim.inc"

// What makes the steps of an op: the numbers of the call, and those that are in tensors.

struct SgdPlan {
  static constexpr int kStates = 0, kNumbers = 1;
  template <class C>
  __device__ SgdStep<C> step(const DeviceNumber (&n)[1]) const {
    return {static_cast<C>(n[0].read())};
  }
};

struct MomentumPlan {
  static constexpr int kStates = 1, kNumbers = 1;
  float mu, rescale_grad, coefficient;
  int decays, nesterov;
  template <class C>
  __device__ MomentumStep<C> step(const DeviceNumber (&n)[1]) const {
    return {static_cast<C>(n[0].read()),
            static_cast<C>(mu),
            static_cast<C>(rescale_grad),
            static_cast<C>(coefficient),
            decays,
            nesterov};
  }
};

template <bool centered>
struct RmspropPlan {
  static constexpr int kStates = centered ? 3 : 2, kNumbers = 1;
  float epsilon, decay, momentum;
  template <class C>
  __device__ RmspropStep<C, centered> step(const DeviceNumber (&n)[1]) const {
    return {static_cast<C>(n[0].read()), static_cast<C>(epsilon), static_cast<C>(decay), static_cast<C>(momentum)};
  }
};

struct AdagradPlan {
  static constexpr int kStates = 1, kNumbers = 1;
  float epsilon;
  template <class C>
  __device__ AdagradStep<C> step(const DeviceNumber (&n)[1]) const {
    return {static_cast<C>(n[0].read()), static_cast<C>(epsilon)};
  }
};

struct AdadeltaPlan {
  static constexpr int kStates = 2, kNumbers = 1;
  float rho, epsilon;
  template <class C>
  __device__ AdadeltaStep<C> step(const DeviceNumber (&n)[1]) const {
    return {static_cast<C>(n[0].read()), static_cast<C>(rho), static_cast<C>(epsilon)};
  }
};

/// The numbers are the learning rate and the power of beta1.
struct AdamaxPlan {
  static constexpr int kStates = 2, kNumbers = 2;
  float beta1, beta2, epsilon;
  template <class C>
  __device__ AdamaxStep<C> step(const DeviceNumber (&n)[2]) const {
    return {static_cast<C>(n[0].read() / (1.0 - n[1].read())), static_cast<C>(beta1), static_cast<C>(beta2),
            static_cast<C>(epsilon)};
  }
};

/// The numbers are the learning rate and n.
struct AsgdPlan {
  static constexpr int kStates = 2, kNumbers = 2;
  template <class C>
  __device__ AsgdStep<C> step(const DeviceNumber (&n)[2]) const {
    return {static_cast<C>(n[0].read() / n[1].read())};
  }
};

/// The numbers are the range of rates and the factors.
struct RpropPlan {
  static constexpr int kStates = 2, kNumbers = 2;
  template <class C>
  __device__ RpropStep<C> step(const DeviceNumber (&n)[2]) const {
    return {static_cast<C>(n[0].read(0)), static_cast<C>(n[0].read(1)), static_cast<C>(n[1].read(0)),
            static_cast<C>(n[1].read(1))};
  }
};

/// The numbers are the learning rate and the powers of beta1 and beta2.
struct AdamwPlan {
  static constexpr int kStates = 2, kNumbers = 3;
  double beta1, beta2, epsilon, lr_ratio, coefficient;
  bool decays;
  template <class C>
  __device__ AdamwStep<C> step(const DeviceNumber (&n)[3]) const {
    const double rate = n[0].read() * lr_ratio;
    return {static_cast<C>(beta1),
            static_cast<C>(beta2),
            static_cast<C>(epsilon),
            static_cast<C>(decays ? rate * coefficient : 0.0),
            static_cast<C>(rate / (1.0 - n[1].read())),
            static_cast<C>(::sqrt(1.0 - n[2].read()))};
  }
};

const DenseTensor* if_precise(bool multi_precision, const DenseTensor& master) {
  return multi_precision ? &master : nullptr;
}

const bool* skip_or_null(const DenseTensor& skip_update) {
  return skip_update.defined() ? elements<const bool>(skip_update) : nullptr;
}

// Kernels of lists, of which the kernels of one parameter are made. Capacity: parameters of a launch.

template <int Capacity, class T>
void sgd(const OpContext& ctx, Tensors, Tensors learning_rate, Tensors grad, Tensors, bool multi_precision,
         Outputs param, Outputs master_param) {
  run_steps<Capacity, T>(ctx, SgdPlan{}, nullptr,
                         parameters_of<SgdPlan>(param, grad, multi_precision, master_param, {}, {learning_rate}));
}

template <int Capacity, class T>
void rmsprop(const OpContext& ctx, Tensors, Tensors, Tensors grad, Tensors, Tensors learning_rate, Tensors, Tensors,
             float epsilon, float decay, float momentum, bool centered, bool multi_precision, Outputs param,
             Outputs moment, Outputs mean_square, Outputs mean_grad, Outputs master_param) {
  if (centered) {
    using Plan = RmspropPlan<true>;
    run_steps<Capacity, T>(ctx, Plan{epsilon, decay, momentum}, nullptr,
                           parameters_of<Plan>(param, grad, multi_precision, master_param,
                                               {mean_square, moment, mean_grad}, {learning_rate}));
  } else {
    using Plan = RmspropPlan<false>;
    run_steps<Capacity, T>(
        ctx, Plan{epsilon, decay, momentum}, nullptr,
        parameters_of<Plan>(param, grad, multi_precision, master_param, {mean_square, moment}, {learning_rate}));
  }
}

template <int Capacity, class T>
void adagrad(const OpContext& ctx, Tensors, Tensors grad, Tensors, Tensors learning_rate, Tensors, float epsilon,
             bool multi_precision, Outputs param, Outputs moment, Outputs master_param) {
  run_steps<Capacity, T>(
      ctx, AdagradPlan{epsilon}, nullptr,
      parameters_of<AdagradPlan>(param, grad, multi_precision, master_param, {moment}, {learning_rate}));
}

template <int Capacity, class T>
void adadelta(const OpContext& ctx, Tensors, Tensors grad, Tensors, Tensors, Tensors learning_rate, Tensors, float rho,
              float epsilon, bool multi_precision, Outputs param, Outputs squared_grad, Outputs squared_update,
              Outputs master_param) {
  run_steps<Capacity, T>(ctx, AdadeltaPlan{rho, epsilon}, nullptr,
                         parameters_of<AdadeltaPlan>(param, grad, multi_precision, master_param,
                                                     {squared_grad, squared_update}, {learning_rate}));
}

template <int Capacity, class T>
void adamax(const OpContext& ctx, Tensors, Tensors grad, Tensors learning_rate, Tensors, Tensors, Tensors beta1_pow,
            Tensors, float beta1, float beta2, float epsilon, bool multi_precision, Outputs param, Outputs moment,
            Outputs inf_norm, Outputs master_param) {
  run_steps<Capacity, T>(ctx, AdamaxPlan{beta1, beta2, epsilon}, nullptr,
                         parameters_of<AdamaxPlan>(param, grad, multi_precision, master_param, {moment, inf_norm},
                                                   {learning_rate, beta1_pow}));
}

template <int Capacity, class T>
void asgd(const OpContext& ctx, Tensors, Tensors grad, Tensors learning_rate, Tensors, Tensors, Tensors n, Tensors,
          bool multi_precision, Outputs param, Outputs d, Outputs y, Outputs master_param) {
  run_steps<Capacity, T>(
      ctx, AsgdPlan{}, nullptr,
      parameters_of<AsgdPlan>(param, grad, multi_precision, master_param, {d, y}, {learning_rate, n}));
}

template <int Capacity, class T>
void rprop(const OpContext& ctx, Tensors, Tensors grad, Tensors, Tensors, Tensors, Tensors learning_rate_range,
           Tensors etas, bool multi_precision, Outputs param, Outputs prev, Outputs learning_rate,
           Outputs master_param) {
  run_steps<Capacity, T>(ctx, RpropPlan{}, nullptr,
                         parameters_of<RpropPlan>(param, grad, multi_precision, master_param, {prev, learning_rate},
                                                  {learning_rate_range, etas}));
}

template <class T>
void momentum(const OpContext& ctx, const DenseTensor&, const DenseTensor& grad, const DenseTensor&,
              const DenseTensor& learning_rate, const DenseTensor&, float mu, bool use_nesterov,
              const std::string& regularization_method, float regularization_coeff, bool multi_precision,
              float rescale_grad, DenseTensor& param, DenseTensor& velocity, DenseTensor& master_param) {
  const MomentumPlan plan{mu, rescale_grad, regularization_coeff, regularization_method.empty() ? 0 : 1,
                          use_nesterov ? 1 : 0};
  run_steps<1, T>(ctx, plan, nullptr,
                  {{param, grad, if_precise(multi_precision, master_param), {&velocity}, {&learning_rate}}});
}

/// Powers of beta1 and beta2 advance when all blocks of the step have read them.
template <int Capacity>
struct Powers {
  double beta[2];
  const bool* skip;
  int parameters;
  DeviceNumber powers[Capacity][2];
};
template <int Capacity>
__global__ void advance_powers(Powers<Capacity> powers) {
  if (powers.skip != nullptr && *powers.skip) return;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * powers.parameters; i += static_cast<int>(blockDim.x)) {
    const DeviceNumber& power = powers.powers[i / 2][i % 2];
    power.write(power.read() * powers.beta[i % 2]);
  }
}

template <int Capacity, class T>
void run_adamw(const OpContext& ctx, const AdamwPlan& plan, const bool* skip, bool use_global_beta_pow,
               const std::vector<TensorsOf<AdamwPlan>>& all) {
  run_steps<Capacity, T>(ctx, plan, skip, all);
  if (use_global_beta_pow || all.empty()) return;
  const DeviceScope scope(all[0].param.device().index);
  for (size_t first = 0; first < all.size(); first += Capacity) {
    Powers<Capacity> powers{{plan.beta1, plan.beta2}, skip, 0, {}};
    for (size_t i = first; i < std::min(all.size(), first + Capacity); ++i, ++powers.parameters) {
      for (int k = 0; k < 2; ++k) powers.powers[powers.parameters][k] = DeviceNumber(*all[i].numbers[1 + k]);
    }
    launch(ctx, advance_powers<Capacity>, 1, 2 * kWarp, powers);
  }
}

template <class T>
void adamw(const OpContext& ctx, const DenseTensor&, const DenseTensor& grad, const DenseTensor& learning_rate,
           const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&, const DenseTensor&,
           const DenseTensor& skip_update, const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon,
           float lr_ratio, float coeff, bool with_decay, bool multi_precision, bool use_global_beta_pow,
           DenseTensor& param, DenseTensor& moment1, DenseTensor& moment2, DenseTensor& beta1_pow,
           DenseTensor& beta2_pow, DenseTensor& master_param) {
  const AdamwPlan plan{beta1.to<double>(),         beta2.to<double>(),
                       epsilon.to<double>(),       static_cast<double>(lr_ratio),
                       static_cast<double>(coeff), with_decay};
  run_adamw<1, T>(ctx, plan, skip_or_null(skip_update), use_global_beta_pow,
                  {{param,
                    grad,
                    if_precise(multi_precision, master_param),
                    {&moment1, &moment2},
                    {&learning_rate, &beta1_pow, &beta2_pow}}});
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

template <class T>
void merged_adam(const OpContext& ctx, Tensors, Tensors grad, Tensors learning_rate, Tensors, Tensors, Tensors, Tensors,
                 Tensors, const Scalar& beta1, const Scalar& beta2, const Scalar& epsilon, bool multi_precision,
                 bool use_global_beta_pow, Outputs param, Outputs moment1, Outputs moment2, Outputs beta1_pow,
                 Outputs beta2_pow, Outputs master_param) {
  const AdamwPlan plan{beta1.to<double>(), beta2.to<double>(), epsilon.to<double>(), 1.0, 0.0, false};
  run_adamw<kMerged, T>(ctx, plan, nullptr, use_global_beta_pow,
                        parameters_of<AdamwPlan>(param, grad, multi_precision, master_param, {moment1, moment2},
                                                 {learning_rate, beta1_pow, beta2_pow}));
}

template <class T>
void fused_adam(const OpContext& ctx, Tensors, Tensors grad, const DenseTensor& learning_rate, Tensors, Tensors,
                Tensors, Tensors, Tensors, const DenseTensor& skip_update, const Scalar& beta1, const Scalar& beta2,
                const Scalar& epsilon, int, float weight_decay, bool use_adamw, bool multi_precision,
                bool use_global_beta_pow, Outputs param, Outputs moment1, Outputs moment2, Outputs beta1_pow,
                Outputs beta2_pow, Outputs master_param) {
  const AdamwPlan plan{
      beta1.to<double>(), beta2.to<double>(), epsilon.to<double>(), 1.0, static_cast<double>(weight_decay), use_adamw};
  run_adamw<kMerged, T>(ctx, plan, skip_or_null(skip_update), use_global_beta_pow,
                        parameters_of<AdamwPlan>(param, grad, multi_precision, master_param, {moment1, moment2},
                                                 {Tensors(&learning_rate, 1), beta1_pow, beta2_pow}));
}

/// Parameters with and without weight decay, or with different coefficients, are in launches of their own.
template <class T>
void merged_momentum(const OpContext& ctx, Tensors, Tensors grad, Tensors, Tensors learning_rate, Tensors, float mu,
                     bool use_nesterov, const std::vector<std::string>& regularization_method,
                     const std::vector<float>& regularization_coeff, bool multi_precision, float rescale_grad,
                     Outputs param, Outputs velocity, Outputs master_param) {
  const auto decays = [&](size_t i) { return !regularization_method.empty() && !regularization_method[i].empty(); };
  const auto coefficient = [&](size_t i) { return decays(i) ? regularization_coeff[i] : 0.0f; };
  std::vector<bool> done(param.size());
  for (size_t first = 0; first < param.size(); ++first) {
    if (done[first]) continue;
    std::vector<TensorsOf<MomentumPlan>> group;
    for (size_t i = first; i < param.size(); ++i) {
      if (done[i] || (i != first && (decays(i) != decays(first) || coefficient(i) != coefficient(first)))) continue;
      done[i] = true;
      group.push_back({param[i],
                       grad[i],
                       multi_precision ? &master_param[i] : nullptr,
                       {&velocity[i]},
                       {&entry_of(learning_rate, i)}});
    }
    const MomentumPlan plan{mu, rescale_grad, coefficient(first), decays(first) ? 1 : 0, use_nesterov ? 1 : 0};
    run_steps<kMerged, T>(ctx, plan, nullptr, group);
  }
}

}  // namespace

void register_optim(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("momentum", backend, dtype_of<T>, &momentum<T>);
    register_kernel("sgd", backend, dtype_of<T>, &OfOne<&sgd<1, T>>::run);
    register_kernel("merged_sgd", backend, dtype_of<T>, &sgd<kMerged, T>);
    register_kernel("rmsprop", backend, dtype_of<T>, &OfOne<&rmsprop<1, T>>::run);
    register_kernel("merged_rmsprop", backend, dtype_of<T>, &rmsprop<kMerged, T>);
    register_kernel("adagrad", backend, dtype_of<T>, &OfOne<&adagrad<1, T>>::run);
    register_kernel("merged_adagrad", backend, dtype_of<T>, &adagrad<kMerged, T>);
    register_kernel("adadelta", backend, dtype_of<T>, &OfOne<&adadelta<1, T>>::run);
    register_kernel("merged_adadelta", backend, dtype_of<T>, &adadelta<kMerged, T>);
    register_kernel("adamax", backend, dtype_of<T>, &OfOne<&adamax<1, T>>::run);
    register_kernel("merged_adamax", backend, dtype_of<T>, &adamax<kMerged, T>);
    register_kernel("asgd", backend, dtype_of<T>, &OfOne<&asgd<1, T>>::run);
    register_kernel("merged_asgd", backend, dtype_of<T>, &asgd<kMerged, T>);
    register_kernel("rprop", backend, dtype_of<T>, &OfOne<&rprop<1, T>>::run);
    register_kernel("merged_rprop", backend, dtype_of<T>, &rprop<kMerged, T>);
    register_kernel("adam", backend, dtype_of<T>, &adam<T>);
    register_kernel("adamw", backend, dtype_of<T>, &adamw<T>);
    register_kernel("merged_adam", backend, dtype_of<T>, &merged_adam<T>);
    register_kernel("fused_adam", backend, dtype_of<T>, &fused_adam<T>);
    register_kernel("merged_momentum", backend, dtype_of<T>, &merged_momentum<T>);
  });
}

}  // namespace shard::cuda
