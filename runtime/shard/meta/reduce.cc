// infer_meta of ops that reduce dims or scan along one. Ops of layers (softmax, norms) are in
// nn.cc.
#include <cmath>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The reduced axes as a bit mask: all where none is named.
unsigned reduced_axes(const OpContext& ctx, const Meta& x, const IntArray& axis) {
  if (axis.empty()) return ~0u;
  unsigned mask = 0;
  for (int64_t a : axis) {
    const unsigned bit = 1u << normalize_axis(ctx.op, "axis", a, x.dims.rank());
    if (mask & bit) {
      fail(ErrorCode::invalid_argument, "[{}] axis {} has one dim of x, which is {}, twice", ctx.op, to_string(axis),
           to_string(x));
    }
    mask |= bit;
  }
  return mask;
}

void reduce(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, DType dtype, Meta& out) {
  const unsigned mask = reduced_axes(ctx, x, axis);
  Dims dims;
  for (int i = 0; i < x.dims.rank(); ++i) {
    if ((mask >> i & 1u) == 0) dims.push_back(x.dims[i]);
    else if (keepdim) dims.push_back(1);
  }
  out = {dims, dtype};
}

/// max and min: there is no result over no elements.
void reduce_extreme(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  reduce(ctx, x, axis, keepdim, x.dtype, out);
  if (ctx.local != nullptr || out.numel() == 0) return;
  if (x.numel() == 0) {
    fail(ErrorCode::invalid_argument, "[{}] x is {}, and the {} of no elements is undefined; reduce other axes than {}",
         ctx.op, to_string(x), ctx.op, to_string(axis));
  }
}

void check_index_dtype(const OpContext& ctx, DType dtype) {
  if (dtype != DType::int32 && dtype != DType::int64)
    fail(ErrorCode::dtype_mismatch, "[{}] dtype is {}, but an index is int32 or int64", ctx.op, to_string(dtype));
}

DType accumulated_dtype(DType x) { return is_floating(x) ? x : DType::int64; }

}  // namespace

void SumInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  reduce(ctx, x, axis, keepdim, accumulated_dtype(x.dtype), out);
}

void ProdInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  reduce(ctx, x, axis, keepdim, accumulated_dtype(x.dtype), out);
}

void MeanInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  check_floating(ctx, "x", x);
  reduce(ctx, x, axis, keepdim, x.dtype, out);
}

void MaxInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  reduce_extreme(ctx, x, axis, keepdim, out);
}

void MinInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  reduce_extreme(ctx, x, axis, keepdim, out);
}

void TruthInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, Meta& out) {
  reduce(ctx, x, axis, keepdim, DType::boolean, out);
}

void SquaredL2NormInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  check_floating(ctx, "x", x);
  out = {Dims{1}, x.dtype};
}

void FrobeniusNormInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keep_dim, bool reduce_all,
                            Meta& out) {
  check_floating(ctx, "x", x);
  reduce(ctx, x, reduce_all ? IntArray() : axis, keep_dim, x.dtype, out);
}

void LogsumexpInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim, bool reduce_all,
                        Meta& out) {
  check_floating(ctx, "x", x);
  reduce_extreme(ctx, x, reduce_all ? IntArray() : axis, keepdim, out);
}

void PNormInferMeta(const OpContext& ctx, const Meta& x, float porder, int axis, float, bool keepdim, bool asvector,
                    Meta& out) {
  check_floating(ctx, "x", x);
  const IntArray along = asvector ? IntArray() : IntArray{axis};
  if (std::isinf(porder)) reduce_extreme(ctx, x, along, keepdim, out);
  else reduce(ctx, x, along, keepdim, x.dtype, out);
}

void L1NormInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  check_floating(ctx, "x", x);
  out = {Dims{}, x.dtype};
}

void NormInferMeta(const OpContext& ctx, const Meta& x, int axis, float, bool, Meta& out, Meta& norm) {
  check_floating(ctx, "x", x);
  out = x;
  reduce(ctx, x, {axis}, /*keepdim=*/true, x.dtype, norm);
}

void VarianceInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool, bool keepdim, Meta& out) {
  check_floating(ctx, "x", x);
  reduce(ctx, x, axis, keepdim, x.dtype, out);
}

void NanmedianInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, bool keepdim,
                        const std::string& mode, Meta& out, Meta& medians) {
  if (x.dtype == DType::boolean)
    fail(ErrorCode::dtype_mismatch, "[{}] x is {}, but must be numbers; cast it", ctx.op, to_string(x));
  if (mode != "avg" && mode != "min")
    fail(ErrorCode::invalid_argument, "[{}] mode is '{}', but must be avg or min", ctx.op, mode);
  reduce_extreme(ctx, x, axis, keepdim, out);
  medians = {out.dims, DType::int64};
  if (mode == "avg") medians.dims.push_back(2);
}

void NumelInferMeta(const OpContext&, const Meta&, Meta& size) { size = {Dims(), DType::int64}; }

void ArgMaxInferMeta(const OpContext& ctx, const Meta& x, const Scalar& axis, bool keepdims, bool flatten, DType dtype,
                     Meta& out) {
  check_index_dtype(ctx, dtype);
  const int along = flatten ? 0 : normalize_axis(ctx.op, "axis", integer(ctx, "axis", axis), x.dims.rank());
  reduce(ctx, x, flatten || x.dims.rank() == 0 ? IntArray() : IntArray{along}, keepdims, dtype, out);
  if (ctx.local == nullptr && x.numel() == 0 && out.numel() != 0) {
    fail(ErrorCode::invalid_argument,
         "[{}] x is {}, and the {} of no elements is undefined; choose an axis that is not empty", ctx.op, to_string(x),
         ctx.op);
  }
}

void CumsumInferMeta(const OpContext& ctx, const Meta& x, const Scalar& axis, bool flatten, Meta& out) {
  out = x;
  if (flatten) out.dims = Dims{x.numel()};
  else normalize_axis(ctx.op, "axis", integer(ctx, "axis", axis), x.dims.rank());
}

void LogcumsumexpInferMeta(const OpContext& ctx, const Meta& x, int axis, bool flatten, Meta& out) {
  check_floating(ctx, "x", x);
  CumsumInferMeta(ctx, x, axis, flatten, out);
}

void UnchangedInferMetaCheckAxis(const OpContext& ctx, const Meta& x, int axis, Meta& out) {
  normalize_axis(ctx.op, "axis", axis, x.dims.rank());
  out = x;
}

void CumWithIndicesInferMeta(const OpContext& ctx, const Meta& x, int axis, DType dtype, Meta& out, Meta& indices) {
  check_index_dtype(ctx, dtype);
  UnchangedInferMetaCheckAxis(ctx, x, axis, out);
  indices = {x.dims, dtype};
}

}  // namespace shard::meta
