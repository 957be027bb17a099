// infer_meta of ops whose number of output rows depends on data: the metas have the largest
// possible number of rows.
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

}  // namespace shard::meta
