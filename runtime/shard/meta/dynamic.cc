// infer_meta of ops whose number of output rows depends on data: the metas have the largest
// possible number of rows.
#include <algorithm>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {

void NonZeroInferMeta(const OpContext&, const Meta& condition, Meta& out) {
  out = {Dims{condition.numel(), condition.dims.rank()}, DType::int64};
}

void MaskedSelectInferMeta(const OpContext& ctx, const Meta& x, const Meta& mask, Meta& out) {
  if (mask.dtype != DType::boolean) {
    fail(ErrorCode::dtype_mismatch, "[{}] argument 'mask' is {}, but must be bool; compare or cast it", ctx.op,
         to_string(mask));
  }
  if (!(mask.dims == x.dims)) {
    fail(ErrorCode::shape_mismatch,
         "[{}] argument 'mask' is {} and 'x' is {}, but they must have one shape; expand the smaller", ctx.op,
         to_string(mask), to_string(x));
  }
  out = {Dims{x.numel()}, x.dtype};
}

void UniqueInferMeta(const OpContext& ctx, const Meta& x, bool return_index, bool return_inverse, bool return_counts,
                     DType dtype, Meta& out, Meta& indices, Meta& inverse, Meta& counts) {
  if (dtype != DType::int32 && dtype != DType::int64) {
    fail(ErrorCode::dtype_mismatch, "[{}] dtype is {}, but indices are int32 or int64", ctx.op, to_string(dtype));
  }
  out = {Dims{x.numel()}, x.dtype};
  indices = {Dims{return_index ? x.numel() : 0}, dtype};
  inverse = {Dims{return_inverse ? x.numel() : 0}, dtype};
  counts = {Dims{return_counts ? x.numel() : 0}, dtype};
}

void UniqueConsecutiveRowsInferMeta(const OpContext& ctx, const Meta& x, bool return_inverse, bool return_counts,
                                    DType dtype, Meta& out, Meta& index, Meta& counts) {
  if (dtype != DType::int32 && dtype != DType::int64) {
    fail(ErrorCode::dtype_mismatch, "[{}] dtype is {}, but indices are int32 or int64", ctx.op, to_string(dtype));
  }
  if (x.dims.rank() == 0)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have a first dim for its rows", ctx.op, to_string(x));
  out = x;
  index = {Dims{return_inverse ? x.dims[0] : 0}, dtype};
  counts = {Dims{return_counts ? x.dims[0] : 0}, dtype};
}

void BincountInferMeta(const OpContext& ctx, const Meta& x, const Meta* weights, const Scalar& minlength, Meta& out) {
  check_index(ctx, "x", x);
  if (x.dims.rank() != 1) fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must be [n]", ctx.op, to_string(x));
  if (integer(ctx, "minlength", minlength) < 0) {
    fail(ErrorCode::invalid_argument, "[{}] minlength is {}, but must be 0 or more", ctx.op,
         integer(ctx, "minlength", minlength));
  }
  out.dtype = DType::int64;
  if (weights != nullptr) {
    if (weights->dims != x.dims) {
      fail(ErrorCode::shape_mismatch, "[{}] weights is {}, but must have the shape of x, which is {}", ctx.op,
           to_string(*weights), to_string(x));
    }
    const DType dtype = weights->dtype;
    if (dtype != DType::float32 && dtype != DType::float64 && dtype != DType::int32 && dtype != DType::int64) {
      fail(ErrorCode::dtype_mismatch, "[{}] weights is {}, but must be float32, float64, int32 or int64; cast it",
           ctx.op, to_string(*weights));
    }
    out.dtype = dtype == DType::float32 ? dtype : DType::float64;
  }
  out.dims = Dims{std::max(most_rows(x.dtype, 1, out.dtype), integer(ctx, "minlength", minlength))};
  check_size(ctx, out.dims, out.dtype);
}

}  // namespace shard::meta
