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
  check_floating(ctx, "param", param);
  check_same_dtype(ctx, "param", param, "grad", grad);
  check_like_param(ctx, "grad", grad, param);
  check_like_param(ctx, "moment1", moment1, param);
  check_like_param(ctx, "moment2", moment2, param);
  check_same_dtype(ctx, "moment1", moment1, "moment2", moment2);
  if (moment1.dtype != param.dtype && moment1.dtype != DType::float32) {
    fail(ErrorCode::dtype_mismatch,
         "[{}] moment1 is {}, but for param, which is {}, it must be of its dtype or float32", ctx.op,
         to_string(moment1), to_string(param));
  }
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

}  // namespace shard::meta
