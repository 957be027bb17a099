// infer_meta of optimiser steps of lists of parameters.
#include <fmt/format.h>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The count of an argument that is a list, with its name.
struct ListCount {
  std::string_view name;
  size_t count;
};

/// A list beside `other`, which it must have as many entries as.
void check_count(const OpContext& ctx, const ListCount& list, const ListCount& other) {
  if (list.count == other.count) return;
  fail(ErrorCode::invalid_argument, "[{}] {} has {} entries, but {} has {}; give one for each", ctx.op, list.name,
       list.count, other.name, other.count);
}

/// The lists of a step of several parameters, the argument `name`: states have as many tensors, numbers as many or one
/// for all, and master copies as many or none.
struct StepLists {
  std::string_view name;
  std::span<const Meta> params;
  std::initializer_list<ListCount> states;
  std::initializer_list<ListCount> numbers;
  ListCount masters;
  bool multi_precision;

  void check(const OpContext& ctx) const {
    check_not_empty(ctx, name, params);
    const ListCount all{name, params.size()};
    for (const ListCount& list : states) check_count(ctx, list, all);
    for (const ListCount& list : numbers) {
      if (list.count != 1) check_count(ctx, list, all);
    }
    if (multi_precision || masters.count != 0) check_count(ctx, masters, all);
    for (const Meta& each : params)
      check_same_dtype(ctx, name, params[0], fmt::format("another tensor of {}", name), each);
  }
};

/// Entry i of a list of numbers, of which one is enough for all.
const Meta& number_of(std::span<const Meta> list, size_t i) { return list[list.size() == 1 ? 0 : i]; }
/// Entry i of a list that may be empty.
const Meta* optional_of(std::span<const Meta> list, size_t i) { return list.empty() ? nullptr : &number_of(list, i); }
/// Entry i of a list of results, which is empty where its argument is: nothing is written there then.
Meta& out_of(std::vector<Meta>& list, size_t i) {
  static Meta absent;
  return list.empty() ? absent : list[i];
}
void resize(size_t count, std::initializer_list<std::vector<Meta>*> lists) {
  for (std::vector<Meta>* list : lists) list->resize(count);
}

/// The steps of a list of parameters by Adam or AdamW.
void infer_adam_steps(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                      std::span<const Meta> learning_rate, std::span<const Meta> moment1, std::span<const Meta> moment2,
                      std::span<const Meta> beta1_pow, std::span<const Meta> beta2_pow,
                      std::span<const Meta> master_param, std::span<const Meta> skip_update, bool multi_precision,
                      std::vector<Meta>& param_out, std::vector<Meta>& moment1_out, std::vector<Meta>& moment2_out,
                      std::vector<Meta>& beta1_pow_out, std::vector<Meta>& beta2_pow_out,
                      std::vector<Meta>& master_param_out) {
  resize(param.size(), {&param_out, &moment1_out, &moment2_out, &beta1_pow_out, &beta2_pow_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    AdamwInferMeta(ctx, param[i], grad[i], number_of(learning_rate, i), moment1[i], moment2[i], beta1_pow[i],
                   beta2_pow[i], optional_of(master_param, i), optional_of(skip_update, i), multi_precision,
                   param_out[i], moment1_out[i], moment2_out[i], beta1_pow_out[i], beta2_pow_out[i],
                   out_of(master_param_out, i));
  }
}

}  // namespace

void MergedMomentumInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                             std::span<const Meta> velocity, std::span<const Meta> learning_rate,
                             std::span<const Meta> master_param, const std::vector<std::string>& regularization_method,
                             const std::vector<float>& regularization_coeff, bool multi_precision,
                             std::vector<Meta>& param_out, std::vector<Meta>& velocity_out,
                             std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()}, {"velocity", velocity.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  const ListCount methods{"regularization_method", regularization_method.size()};
  check_count(ctx, {"regularization_coeff", regularization_coeff.size()}, methods);
  if (methods.count != 0) check_count(ctx, methods, {"param", param.size()});
  resize(param.size(), {&param_out, &velocity_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    MomentumInferMeta(ctx, param[i], grad[i], velocity[i], number_of(learning_rate, i), optional_of(master_param, i),
                      regularization_method.empty() ? "" : regularization_method[i], multi_precision, param_out[i],
                      velocity_out[i], out_of(master_param_out, i));
  }
}

void MergedAdamInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                         std::span<const Meta> learning_rate, std::span<const Meta> moment1,
                         std::span<const Meta> moment2, std::span<const Meta> beta1_pow,
                         std::span<const Meta> beta2_pow, std::span<const Meta> master_param, bool multi_precision,
                         std::vector<Meta>& param_out, std::vector<Meta>& moment1_out, std::vector<Meta>& moment2_out,
                         std::vector<Meta>& beta1_pow_out, std::vector<Meta>& beta2_pow_out,
                         std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()},
             {"moment1", moment1.size()},
             {"moment2", moment2.size()},
             {"beta1_pow", beta1_pow.size()},
             {"beta2_pow", beta2_pow.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  infer_adam_steps(ctx, param, grad, learning_rate, moment1, moment2, beta1_pow, beta2_pow, master_param, {},
                   multi_precision, param_out, moment1_out, moment2_out, beta1_pow_out, beta2_pow_out,
                   master_param_out);
}

void FusedAdamInferMeta(const OpContext& ctx, std::span<const Meta> params, std::span<const Meta> grads,
                        const Meta& learning_rate, std::span<const Meta> moments1, std::span<const Meta> moments2,
                        std::span<const Meta> beta1_pows, std::span<const Meta> beta2_pows,
                        std::span<const Meta> master_params, const Meta* skip_update, const Scalar&, const Scalar&,
                        const Scalar&, int, float, bool, bool multi_precision, bool, std::vector<Meta>& params_out,
                        std::vector<Meta>& moments1_out, std::vector<Meta>& moments2_out,
                        std::vector<Meta>& beta1_pows_out, std::vector<Meta>& beta2_pows_out,
                        std::vector<Meta>& master_params_out) {
  StepLists{"params",
            params,
            {{"grads", grads.size()},
             {"moments1", moments1.size()},
             {"moments2", moments2.size()},
             {"beta1_pows", beta1_pows.size()},
             {"beta2_pows", beta2_pows.size()}},
            {},
            {"master_params", master_params.size()},
            multi_precision}
      .check(ctx);
  const std::span<const Meta> skip(skip_update, skip_update == nullptr ? 0 : 1);
  infer_adam_steps(ctx, params, grads, {&learning_rate, 1}, moments1, moments2, beta1_pows, beta2_pows, master_params,
                   skip, multi_precision, params_out, moments1_out, moments2_out, beta1_pows_out, beta2_pows_out,
                   master_params_out);
}

void MergedSgdInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> learning_rate,
                        std::span<const Meta> grad, std::span<const Meta> master_param, bool multi_precision,
                        std::vector<Meta>& param_out, std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  resize(param.size(), {&param_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    SgdInferMeta(ctx, param[i], number_of(learning_rate, i), grad[i], optional_of(master_param, i), multi_precision,
                 param_out[i], out_of(master_param_out, i));
  }
}

void MergedRmspropInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> mean_square,
                            std::span<const Meta> grad, std::span<const Meta> moment,
                            std::span<const Meta> learning_rate, std::span<const Meta> mean_grad,
                            std::span<const Meta> master_param, bool centered, bool multi_precision,
                            std::vector<Meta>& param_out, std::vector<Meta>& moment_out,
                            std::vector<Meta>& mean_square_out, std::vector<Meta>& mean_grad_out,
                            std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"mean_square", mean_square.size()}, {"grad", grad.size()}, {"moment", moment.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  if (centered || !mean_grad.empty()) check_count(ctx, {"mean_grad", mean_grad.size()}, {"param", param.size()});
  resize(param.size(), {&param_out, &moment_out, &mean_square_out});
  mean_grad_out.resize(mean_grad.size());
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    RmspropInferMeta(ctx, param[i], mean_square[i], grad[i], moment[i], number_of(learning_rate, i),
                     optional_of(mean_grad, i), optional_of(master_param, i), centered, multi_precision, param_out[i],
                     moment_out[i], mean_square_out[i], out_of(mean_grad_out, i), out_of(master_param_out, i));
  }
}

void MergedAdagradInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                            std::span<const Meta> moment, std::span<const Meta> learning_rate,
                            std::span<const Meta> master_param, bool multi_precision, std::vector<Meta>& param_out,
                            std::vector<Meta>& moment_out, std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()}, {"moment", moment.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  resize(param.size(), {&param_out, &moment_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    AdagradInferMeta(ctx, param[i], grad[i], moment[i], number_of(learning_rate, i), optional_of(master_param, i),
                     multi_precision, param_out[i], moment_out[i], out_of(master_param_out, i));
  }
}

void MergedAdadeltaInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                             std::span<const Meta> avg_squared_grad, std::span<const Meta> avg_squared_update,
                             std::span<const Meta> learning_rate, std::span<const Meta> master_param,
                             bool multi_precision, std::vector<Meta>& param_out, std::vector<Meta>& moment_out,
                             std::vector<Meta>& inf_norm_out, std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()},
             {"avg_squared_grad", avg_squared_grad.size()},
             {"avg_squared_update", avg_squared_update.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  resize(param.size(), {&param_out, &moment_out, &inf_norm_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    AdadeltaInferMeta(ctx, param[i], grad[i], avg_squared_grad[i], avg_squared_update[i], number_of(learning_rate, i),
                      optional_of(master_param, i), multi_precision, param_out[i], moment_out[i], inf_norm_out[i],
                      out_of(master_param_out, i));
  }
}

void MergedAdamaxInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                           std::span<const Meta> learning_rate, std::span<const Meta> moment,
                           std::span<const Meta> inf_norm, std::span<const Meta> beta1_pow,
                           std::span<const Meta> master_param, bool multi_precision, std::vector<Meta>& param_out,
                           std::vector<Meta>& moment_out, std::vector<Meta>& inf_norm_out,
                           std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()}, {"moment", moment.size()}, {"inf_norm", inf_norm.size()}},
            {{"learning_rate", learning_rate.size()}, {"beta1_pow", beta1_pow.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  resize(param.size(), {&param_out, &moment_out, &inf_norm_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    AdamaxInferMeta(ctx, param[i], grad[i], number_of(learning_rate, i), moment[i], inf_norm[i],
                    number_of(beta1_pow, i), optional_of(master_param, i), multi_precision, param_out[i], moment_out[i],
                    inf_norm_out[i], out_of(master_param_out, i));
  }
}

void MergedAsgdInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                         std::span<const Meta> learning_rate, std::span<const Meta> d, std::span<const Meta> y,
                         std::span<const Meta> n, std::span<const Meta> master_param, bool multi_precision,
                         std::vector<Meta>& param_out, std::vector<Meta>& d_out, std::vector<Meta>& y_out,
                         std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()}, {"d", d.size()}, {"y", y.size()}},
            {{"learning_rate", learning_rate.size()}, {"n", n.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  resize(param.size(), {&param_out, &d_out, &y_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    ASGDInferMeta(ctx, param[i], grad[i], number_of(learning_rate, i), d[i], y[i], number_of(n, i),
                  optional_of(master_param, i), multi_precision, param_out[i], d_out[i], y_out[i],
                  out_of(master_param_out, i));
  }
}

void MergedRpropInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                          std::span<const Meta> prev, std::span<const Meta> learning_rate,
                          std::span<const Meta> master_param, std::span<const Meta> learning_rate_range,
                          std::span<const Meta> etas, bool multi_precision, std::vector<Meta>& param_out,
                          std::vector<Meta>& prev_out, std::vector<Meta>& learning_rate_out,
                          std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()}, {"prev", prev.size()}, {"learning_rate", learning_rate.size()}},
            {{"learning_rate_range", learning_rate_range.size()}, {"etas", etas.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  resize(param.size(), {&param_out, &prev_out, &learning_rate_out});
  master_param_out.resize(master_param.size());
  for (size_t i = 0; i < param.size(); ++i) {
    RpropInferMeta(ctx, param[i], grad[i], prev[i], learning_rate[i], optional_of(master_param, i),
                   number_of(learning_rate_range, i), number_of(etas, i), multi_precision, param_out[i], prev_out[i],
                   learning_rate_out[i], out_of(master_param_out, i));
  }
}

void MergedLambInferMeta(const OpContext& ctx, std::span<const Meta> param, std::span<const Meta> grad,
                         std::span<const Meta> learning_rate, std::span<const Meta> moment1,
                         std::span<const Meta> moment2, std::span<const Meta> beta1_pow,
                         std::span<const Meta> beta2_pow, std::span<const Meta> master_param,
                         std::span<const Meta> skip_update, bool multi_precision, std::vector<Meta>& param_out,
                         std::vector<Meta>& moment1_out, std::vector<Meta>& moment2_out,
                         std::vector<Meta>& beta1_pow_out, std::vector<Meta>& beta2_pow_out,
                         std::vector<Meta>& master_param_out) {
  StepLists{"param",
            param,
            {{"grad", grad.size()},
             {"moment1", moment1.size()},
             {"moment2", moment2.size()},
             {"beta1_pow", beta1_pow.size()},
             {"beta2_pow", beta2_pow.size()}},
            {{"learning_rate", learning_rate.size()}},
            {"master_param", master_param.size()},
            multi_precision}
      .check(ctx);
  if (skip_update.size() > 1) check_count(ctx, {"skip_update", skip_update.size()}, {"param", param.size()});
  infer_adam_steps(ctx, param, grad, learning_rate, moment1, moment2, beta1_pow, beta2_pow, master_param, skip_update,
                   multi_precision, param_out, moment1_out, moment2_out, beta1_pow_out, beta2_pow_out,
                   master_param_out);
}

}  // namespace shard::meta
