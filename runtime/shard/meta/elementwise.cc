// infer_meta of elementwise ops. Creation and random ops are in creation.cc.
#include <cmath>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// A fraction is not allowed for an integer tensor: rounding it silently would compute another
/// function.
void check_fits(const OpContext& ctx, std::string_view name, const Meta& x, const Scalar& value) {
  if (is_floating(x.dtype) || value.is_integer()) return;
  const double real = value.to<double>();
  if (real == std::floor(real) && std::abs(real) < 0x1p63) return;
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but x is {}, which needs an integer; cast x to a float dtype first",
       ctx.op, name, real, to_string(x));
}

}  // namespace

void UnchangedInferMeta(const OpContext&, const Meta& x, Meta& out) { out = x; }

void ElementwiseInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  check_same_dtype(ctx, "x", x, "y", y);
  out.dtype = x.dtype;
  if (x.dims == y.dims) {
    out.dims = x.dims;
    return;
  }
  out.dims = broadcast(ctx, "x", x.dims, "y", y.dims);
  check_size(ctx, out.dims, out.dtype);
}

void CompareInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  ElementwiseInferMeta(ctx, x, y, out);
  out.dtype = DType::boolean;
}

void LogicalNotInferMeta(const OpContext&, const Meta& x, Meta& out) { out = {x.dims, DType::boolean}; }

void SwiGLUInferMeta(const OpContext& ctx, const Meta& x, const Meta* y, Meta& out) {
  check_floating(ctx, "x", x);
  out = x;
  if (y != nullptr) {
    check_same_dtype(ctx, "x", x, "y", *y);
    if (x.dims == y->dims) return;
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and y is {}, but their shapes must be equal; expand one of them",
         ctx.op, to_string(x), to_string(*y));
  }
  const int last = x.dims.rank() - 1;
  if (last < 0 || x.dims[last] % 2 != 0) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {}, but without y its last dim must be even, gates first and then values; pass y", ctx.op,
         to_string(x));
  }
  out.dims[last] /= 2;
}

void ActivationGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out_grad, Meta& x_grad) {
  check_floating(ctx, "x", x);
  check_like_forward(ctx, "out_grad", out_grad, x);
  x_grad = x;
}

void SiluGradInferMeta(const OpContext& ctx, const Meta& x, const Meta& out, const Meta& out_grad, Meta& x_grad) {
  check_like_forward(ctx, "out", out, x);
  ActivationGradInferMeta(ctx, x, out_grad, x_grad);
}

void SwiGLUGradInferMeta(const OpContext& ctx, const Meta& x, const Meta* y, const Meta& out_grad, Meta& x_grad,
                         Meta& y_grad) {
  Meta out;
  SwiGLUInferMeta(ctx, x, y, out);
  check_like_forward(ctx, "out_grad", out_grad, out);
  x_grad = x;
  if (y != nullptr) y_grad = *y;
}

void AddNInferMeta(const OpContext& ctx, std::span<const Meta> inputs, Meta& out) {
  if (inputs.empty())
    fail(ErrorCode::invalid_argument, "[{}] inputs is an empty list, but at least one tensor is needed", ctx.op);
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i] == inputs[0]) continue;
    const bool dtypes = inputs[i].dtype != inputs[0].dtype;
    fail(dtypes ? ErrorCode::dtype_mismatch : ErrorCode::shape_mismatch,
         "[{}] inputs[0] is {} and inputs[{}] is {}, but all must be alike; {} one of them", ctx.op,
         to_string(inputs[0]), i, to_string(inputs[i]), dtypes ? "cast" : "expand");
  }
  out = inputs[0];
}

void CastInferMeta(const OpContext& ctx, const Meta& x, DType dtype, Meta& out) {
  out = {x.dims, dtype};
  check_size(ctx, out.dims, dtype);
}

void ScaleInferMeta(const OpContext& ctx, const Meta& x, const Scalar& scale, const Scalar& bias, bool, Meta& out) {
  check_fits(ctx, "scale", x, scale);
  check_fits(ctx, "bias", x, bias);
  out = x;
}

void PowInferMeta(const OpContext& ctx, const Meta& x, const Scalar& y, Meta& out) {
  check_fits(ctx, "y", x, y);
  out = x;
}

void ClipInferMeta(const OpContext& ctx, const Meta& x, const Scalar& min, const Scalar& max, Meta& out) {
  const bool integers = min.is_integer() && max.is_integer();
  const bool ordered = integers ? min.to<int64_t>() <= max.to<int64_t>() : min.to<double>() <= max.to<double>();
  if (!ordered) {
    fail(ErrorCode::invalid_argument, "[{}] min is {} and max is {}, but min must not be larger; swap them", ctx.op,
         min.to<double>(), max.to<double>());
  }
  out = x;
}

void AllValueCompareInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  check_same_dtype(ctx, "x", x, "y", y);
  if (x.dims != y.dims) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and y is {}, but their shapes must be equal; expand one of them",
         ctx.op, to_string(x), to_string(y));
  }
  out = {Dims{}, DType::boolean};
}

void LerpInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const Meta& weight, Meta& out) {
  check_same_dtype(ctx, "x", x, "y", y);
  check_same_dtype(ctx, "x", x, "weight", weight);
  out = {broadcast(ctx, "weight", weight.dims, "x with y", broadcast(ctx, "x", x.dims, "y", y.dims)), x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void IncrementInferMeta(const OpContext& ctx, const Meta& x, float value, Meta& out) {
  check_fits(ctx, "value", x, value);
  if (ctx.local == nullptr && x.dims.numel() != 1)
    fail(ErrorCode::invalid_argument, "[{}] x is {}, but must have one element; use scale", ctx.op, to_string(x));
  out = x;
}

void PolygammaInferMeta(const OpContext& ctx, const Meta& x, int n, Meta& out) {
  if (n < 0) fail(ErrorCode::invalid_argument, "[{}] n is {}, but must not be negative", ctx.op, n);
  out = x;
}

void CeluInferMeta(const OpContext& ctx, const Meta& x, float alpha, Meta& out) {
  if (alpha == 0) fail(ErrorCode::invalid_argument, "[{}] alpha is 0, but x is divided by it; use relu", ctx.op);
  out = x;
}

void SoftshrinkInferMeta(const OpContext& ctx, const Meta& x, float threshold, Meta& out) {
  if (!(threshold >= 0))
    fail(ErrorCode::invalid_argument, "[{}] threshold is {}, but must not be negative", ctx.op, threshold);
  out = x;
}

void WhereInferMeta(const OpContext& ctx, const Meta& condition, const Meta& x, const Meta& y, Meta& out) {
  if (condition.dtype != DType::boolean) {
    fail(ErrorCode::dtype_mismatch, "[{}] condition is {}, but must be bool; cast it first", ctx.op,
         to_string(condition));
  }
  check_same_dtype(ctx, "x", x, "y", y);
  out = {broadcast(ctx, "condition", condition.dims, "x with y", broadcast(ctx, "x", x.dims, "y", y.dims)), x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

}  // namespace shard::meta
