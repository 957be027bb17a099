// infer_meta of optimiser steps.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

void check_like_param(const OpContext& ctx, std::string_view name, const Meta& x, const Meta& param) {
  if (x.dims == param.dims) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have the shape of param, which is {}", ctx.op, name,
       to_string(x), to_string(param));
}

void check_number(const OpContext& ctx, std::string_view name, const Meta& x) {
  check_floating(ctx, name, x);
  if (x.numel() == 1) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have one element", ctx.op, name, to_string(x));
}

void check_master(const OpContext& ctx, const Meta* master_param, const Meta& param, bool multi_precision,
                  Meta& master_out) {
  if (multi_precision && param.dtype == DType::float64) {
    fail(ErrorCode::dtype_mismatch,
         "[{}] multi_precision keeps param in float32, which would round param, which is {}; leave it out", ctx.op,
         to_string(param));
  }
  if (master_param != nullptr) {
    check_like_param(ctx, "master_param", *master_param, param);
    if (master_param->dtype != DType::float32) {
      fail(ErrorCode::dtype_mismatch, "[{}] master_param is {}, but must be float32", ctx.op, to_string(*master_param));
    }
    master_out = *master_param;
  } else if (multi_precision) {
    fail(ErrorCode::undefined, "[{}] multi_precision needs master_param, a float32 copy of param, which is {}", ctx.op,
         to_string(param));
  }
}

/// Checks a state of an optimiser.
void check_state(const OpContext& ctx, std::string_view name, const Meta& x, const Meta& param) {
  check_like_param(ctx, name, x, param);
  if (x.dtype == param.dtype || x.dtype == DType::float32) return;
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but for param, which is {}, it must be of its dtype or float32",
       ctx.op, name, to_string(x), to_string(param));
}

struct NamedState {
  std::string_view name;
  const Meta& meta;
};

/// Checks param, grad and all states, whose dtypes must be equal.
void check_step(const OpContext& ctx, const Meta& param, const Meta& grad, std::initializer_list<NamedState> states) {
  check_floating(ctx, "param", param);
  check_same_dtype(ctx, "param", param, "grad", grad);
  check_like_param(ctx, "grad", grad, param);
  const NamedState& first = *states.begin();
  for (const NamedState& state : states) {
    check_state(ctx, state.name, state.meta, param);
    check_same_dtype(ctx, first.name, first.meta, state.name, state.meta);
  }
}

void check_count(const OpContext& ctx, std::string_view name, const Meta& x) {
  if (x.dtype == DType::int64 && x.numel() == 1) return;
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but must be one int64", ctx.op, name, to_string(x));
}

void check_pair(const OpContext& ctx, std::string_view name, const Meta& x) {
  check_floating(ctx, name, x);
  if (x.dims == Dims{2}) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must be [2]", ctx.op, name, to_string(x));
}

}  // namespace

void SgdInferMeta(const OpContext& ctx, const Meta& param, const Meta& learning_rate, const Meta& grad,
                  const Meta* master_param, bool multi_precision, Meta& param_out, Meta& master_param_out) {
  check_floating(ctx, "param", param);
  check_number(ctx, "learning_rate", learning_rate);
  check_same_dtype(ctx, "param", param, "grad", grad);
  check_like_param(ctx, "grad", grad, param);
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
}

void AdamwInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& learning_rate,
                    const Meta& moment1, const Meta& moment2, const Meta& beta1_pow, const Meta& beta2_pow,
                    const Meta* master_param, const Meta* skip_update, bool multi_precision, Meta& param_out,
                    Meta& moment1_out, Meta& moment2_out, Meta& beta1_pow_out, Meta& beta2_pow_out,
                    Meta& master_param_out) {
  check_step(ctx, param, grad, {{"moment1", moment1}, {"moment2", moment2}});
  check_number(ctx, "learning_rate", learning_rate);
  check_number(ctx, "beta1_pow", beta1_pow);
  check_number(ctx, "beta2_pow", beta2_pow);
  if (skip_update != nullptr && (skip_update->dtype != DType::boolean || skip_update->numel() != 1)) {
    fail(ErrorCode::dtype_mismatch, "[{}] skip_update is {}, but must be one bool", ctx.op, to_string(*skip_update));
  }
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  moment1_out = moment1;
  moment2_out = moment2;
  beta1_pow_out = beta1_pow;
  beta2_pow_out = beta2_pow;
}

void MomentumInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& velocity,
                       const Meta& learning_rate, const Meta* master_param, const std::string& regularization_method,
                       bool multi_precision, Meta& param_out, Meta& velocity_out, Meta& master_param_out) {
  check_step(ctx, param, grad, {{"velocity", velocity}});
  check_number(ctx, "learning_rate", learning_rate);
  if (!regularization_method.empty() && regularization_method != "l2_decay") {
    fail(ErrorCode::invalid_argument, "[{}] regularization_method is \"{}\", but must be \"\" or \"l2_decay\"", ctx.op,
         regularization_method);
  }
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  velocity_out = velocity;
}

void RmspropInferMeta(const OpContext& ctx, const Meta& param, const Meta& mean_square, const Meta& grad,
                      const Meta& moment, const Meta& learning_rate, const Meta* mean_grad, const Meta* master_param,
                      bool centered, bool multi_precision, Meta& param_out, Meta& moment_out, Meta& mean_square_out,
                      Meta& mean_grad_out, Meta& master_param_out) {
  check_step(ctx, param, grad, {{"mean_square", mean_square}, {"moment", moment}});
  check_number(ctx, "learning_rate", learning_rate);
  if (mean_grad != nullptr) {
    check_state(ctx, "mean_grad", *mean_grad, param);
    check_same_dtype(ctx, "mean_square", mean_square, "mean_grad", *mean_grad);
    mean_grad_out = *mean_grad;
  } else if (centered) {
    fail(ErrorCode::undefined, "[{}] centered needs mean_grad, the running mean of the gradients of param, which is {}",
         ctx.op, to_string(param));
  }
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  moment_out = moment;
  mean_square_out = mean_square;
}

void AdagradInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& moment,
                      const Meta& learning_rate, const Meta* master_param, bool multi_precision, Meta& param_out,
                      Meta& moment_out, Meta& master_param_out) {
  check_step(ctx, param, grad, {{"moment", moment}});
  check_number(ctx, "learning_rate", learning_rate);
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  moment_out = moment;
}

void AdadeltaInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& avg_squared_grad,
                       const Meta& avg_squared_update, const Meta& learning_rate, const Meta* master_param,
                       bool multi_precision, Meta& param_out, Meta& moment_out, Meta& inf_norm_out,
                       Meta& master_param_out) {
  check_step(ctx, param, grad, {{"avg_squared_grad", avg_squared_grad}, {"avg_squared_update", avg_squared_update}});
  check_number(ctx, "learning_rate", learning_rate);
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  moment_out = avg_squared_grad;
  inf_norm_out = avg_squared_update;
}

void AdamaxInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& learning_rate,
                     const Meta& moment, const Meta& inf_norm, const Meta& beta1_pow, const Meta* master_param,
                     bool multi_precision, Meta& param_out, Meta& moment_out, Meta& inf_norm_out,
                     Meta& master_param_out) {
  check_step(ctx, param, grad, {{"moment", moment}, {"inf_norm", inf_norm}});
  check_number(ctx, "learning_rate", learning_rate);
  check_number(ctx, "beta1_pow", beta1_pow);
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  moment_out = moment;
  inf_norm_out = inf_norm;
}

void ASGDInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& learning_rate, const Meta& d,
                   const Meta& y, const Meta& n, const Meta* master_param, bool multi_precision, Meta& param_out,
                   Meta& d_out, Meta& y_out, Meta& master_param_out) {
  check_step(ctx, param, grad, {{"d", d}, {"y", y}});
  check_number(ctx, "learning_rate", learning_rate);
  check_number(ctx, "n", n);
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  d_out = d;
  y_out = y;
}

void RpropInferMeta(const OpContext& ctx, const Meta& param, const Meta& grad, const Meta& prev,
                    const Meta& learning_rate, const Meta* master_param, const Meta& learning_rate_range,
                    const Meta& etas, bool multi_precision, Meta& param_out, Meta& prev_out, Meta& learning_rate_out,
                    Meta& master_param_out) {
  check_step(ctx, param, grad, {{"prev", prev}, {"learning_rate", learning_rate}});
  check_pair(ctx, "learning_rate_range", learning_rate_range);
  check_pair(ctx, "etas", etas);
  check_master(ctx, master_param, param, multi_precision, master_param_out);
  param_out = param;
  prev_out = prev;
  learning_rate_out = learning_rate;
}

namespace {

/// Checks that the tensors of a list have one float dtype.
void check_float_list(const OpContext& ctx, std::span<const Meta> x) {
  check_not_empty(ctx, "x", x);
  for (size_t i = 0; i < x.size(); ++i) {
    const std::string name = "x[" + std::to_string(i) + "]";
    check_floating(ctx, name, x[i]);
    check_same_dtype(ctx, "x[0]", x[0], name, x[i]);
  }
}

void check_one(const OpContext& ctx, std::string_view name, const Meta& x, DType dtype) {
  if (x.dtype == dtype && x.numel() == 1) return;
  fail(x.dtype == dtype ? ErrorCode::shape_mismatch : ErrorCode::dtype_mismatch, "[{}] {} is {}, but must be one {}",
       ctx.op, name, to_string(x), to_string(dtype));
}

}  // namespace

void CheckFiniteAndUnscaleInferMeta(const OpContext& ctx, std::span<const Meta> x, const Meta& scale,
                                    std::vector<Meta>& out, Meta& found_infinite) {
  check_float_list(ctx, x);
  check_number(ctx, "scale", scale);
  out.assign(x.begin(), x.end());
  found_infinite = {Dims{1}, DType::boolean};
}

void UpdateLossScalingInferMeta(const OpContext& ctx, std::span<const Meta> x, const Meta& found_infinite,
                                const Meta& prev_loss_scaling, const Meta& in_good_steps, const Meta& in_bad_steps,
                                std::vector<Meta>& out, Meta& loss_scaling, Meta& out_good_steps, Meta& out_bad_steps) {
  check_float_list(ctx, x);
  check_one(ctx, "found_infinite", found_infinite, DType::boolean);
  check_number(ctx, "prev_loss_scaling", prev_loss_scaling);
  check_one(ctx, "in_good_steps", in_good_steps, DType::int32);
  check_one(ctx, "in_bad_steps", in_bad_steps, DType::int32);
  out.assign(x.begin(), x.end());
  loss_scaling = prev_loss_scaling;
  out_good_steps = in_good_steps;
  out_bad_steps = in_bad_steps;
}

void AverageAccumulatesInferMeta(const OpContext& ctx, const Meta& param, const Meta& in_sum_1, const Meta& in_sum_2,
                                 const Meta& in_sum_3, const Meta& in_num_accumulates,
                                 const Meta& in_old_num_accumulates, const Meta& in_num_updates, float,
                                 int64_t max_average_window, int64_t min_average_window, Meta& out_sum_1,
                                 Meta& out_sum_2, Meta& out_sum_3, Meta& out_num_accumulates,
                                 Meta& out_old_num_accumulates, Meta& out_num_updates) {
  check_floating(ctx, "param", param);
  const NamedState sums[] = {{"in_sum_1", in_sum_1}, {"in_sum_2", in_sum_2}, {"in_sum_3", in_sum_3}};
  for (const NamedState& sum : sums) {
    check_like_param(ctx, sum.name, sum.meta, param);
    check_same_dtype(ctx, "param", param, sum.name, sum.meta);
  }
  check_count(ctx, "in_num_accumulates", in_num_accumulates);
  check_count(ctx, "in_old_num_accumulates", in_old_num_accumulates);
  check_count(ctx, "in_num_updates", in_num_updates);
  if (min_average_window > max_average_window) {
    fail(ErrorCode::invalid_argument, "[{}] min_average_window is {}, but must be at most max_average_window, {}",
         ctx.op, min_average_window, max_average_window);
  }
  out_sum_1 = in_sum_1;
  out_sum_2 = in_sum_2;
  out_sum_3 = in_sum_3;
  out_num_accumulates = in_num_accumulates;
  out_old_num_accumulates = in_old_num_accumulates;
  out_num_updates = in_num_updates;
}

}  // namespace shard::meta
