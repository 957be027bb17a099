// infer_meta of sorting, selection and counting.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The size of the axis; 1 for a tensor without dims.
int64_t axis_size(const OpContext& ctx, const Meta& x, int axis) {
  const int along = normalize_axis(ctx.op, "axis", axis, x.dims.rank());
  return x.dims.rank() == 0 ? 1 : x.dims[along];
}

void check_k(const OpContext& ctx, const Meta& x, int64_t k, int axis) {
  const int64_t size = axis_size(ctx, x, axis);
  if (ctx.local == nullptr && (k < 1 || k > size)) {  // a local shard may have fewer
    fail(ErrorCode::invalid_argument, "[{}] k is {}, but must be from 1 to {}, the size of axis {} of x, which is {}",
         ctx.op, k, size, axis, to_string(x));
  }
}

/// x with another size of the axis.
Dims resized(const OpContext& ctx, const Meta& x, int64_t size, int axis) {
  Dims dims = x.dims;
  if (dims.rank() > 0) dims[normalize_axis(ctx.op, "axis", axis, dims.rank())] = size;
  return dims;
}

void select_one(const OpContext& ctx, const Meta& x, int axis, bool keepdim, Meta& out, Meta& indices) {
  Dims dims = resized(ctx, x, 1, axis);
  if (!keepdim && dims.rank() > 0) dims.erase(normalize_axis(ctx.op, "axis", axis, dims.rank()));
  out = {dims, x.dtype};
  indices = {dims, DType::int64};
}

void check_not_bool(const OpContext& ctx, const char* name, const Meta& x) {
  if (x.dtype == DType::boolean)
    fail(ErrorCode::dtype_mismatch, "[{}] argument '{}' is {}, but must be numbers; cast it", ctx.op, name,
         to_string(x));
}

}  // namespace

void TopKInferMeta(const OpContext& ctx, const Meta& x, const Scalar& k, int axis, Meta& out, Meta& indices) {
  const int64_t count = integer(ctx, "k", k);
  check_k(ctx, x, count, axis);
  out = {resized(ctx, x, count, axis), x.dtype};
  indices = {out.dims, DType::int64};
}

void ArgsortInferMeta(const OpContext& ctx, const Meta& x, int axis, Meta& out, Meta& indices) {
  axis_size(ctx, x, axis);
  out = x;
  indices = {x.dims, DType::int64};
}

void KthvalueInferMeta(const OpContext& ctx, const Meta& x, int k, int axis, bool keepdim, Meta& out, Meta& indices) {
  check_k(ctx, x, k, axis);
  select_one(ctx, x, axis, keepdim, out, indices);
}

void ModeInferMeta(const OpContext& ctx, const Meta& x, int axis, bool keepdim, Meta& out, Meta& indices) {
  if (axis_size(ctx, x, axis) == 0) {
    fail(ErrorCode::invalid_argument,
         "[{}] x is {}, and the most frequent of no elements is undefined; choose an axis that is not empty", ctx.op,
         to_string(x));
  }
  select_one(ctx, x, axis, keepdim, out, indices);
}

void SearchsortedInferMeta(const OpContext& ctx, const Meta& sorted_sequence, const Meta& values, bool out_int32,
                           Meta& out) {
  check_same_dtype(ctx, "sorted_sequence", sorted_sequence, "values", values);
  check_not_bool(ctx, "sorted_sequence", sorted_sequence);
  const Dims &rows = sorted_sequence.dims, &dims = values.dims;
  bool fits = rows.rank() == 1 || (rows.rank() > 1 && rows.rank() == dims.rank());
  for (int d = 0; fits && d + 1 < rows.rank(); ++d) fits = rows[d] == dims[d];
  if (!fits) {
    fail(ErrorCode::shape_mismatch,
         "[{}] argument 'sorted_sequence' is {}, but must be [n] or have the leading dims of values, which is {}",
         ctx.op, to_string(sorted_sequence), to_string(values));
  }
  out = {dims, out_int32 ? DType::int32 : DType::int64};
}

void HistogramInferMeta(const OpContext& ctx, const Meta& input, int64_t bins, int min, int max, Meta& out) {
  check_not_bool(ctx, "input", input);
  if (bins < 1) fail(ErrorCode::invalid_argument, "[{}] bins is {}, but must be at least 1", ctx.op, bins);
  if (min > max) {
    fail(ErrorCode::invalid_argument, "[{}] min is {} and max is {}, but max must not be smaller", ctx.op, min, max);
  }
  out = {Dims{bins}, DType::int64};
}

}  // namespace shard::meta
