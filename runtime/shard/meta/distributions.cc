// infer_meta of ops that draw from distributions whose parameters are tensors.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {

void BinomialInferMeta(const OpContext& ctx, const Meta& count, const Meta& prob, Meta& out) {
  check_floating(ctx, "prob", prob);
  check_same_dtype(ctx, "count", count, "prob", prob);
  if (count.dims != prob.dims) {
    fail(ErrorCode::shape_mismatch, "[{}] count is {} and prob is {}, but both must have one shape; expand one", ctx.op,
         to_string(count), to_string(prob));
  }
  out = {count.dims, DType::int64};
}

void DirichletInferMeta(const OpContext& ctx, const Meta& alpha, Meta& out) {
  check_floating(ctx, "alpha", alpha);
  if (alpha.dims.rank() == 0) {
    fail(ErrorCode::shape_mismatch, "[{}] alpha is {}, but needs a last dim, that of the categories; reshape it",
         ctx.op, to_string(alpha));
  }
  out = alpha;
}

void MultinomialInferMeta(const OpContext& ctx, const Meta& x, const Scalar& num_samples, bool replacement, Meta& out) {
  check_floating(ctx, "x", x);
  const int rank = x.dims.rank();
  if (rank != 1 && rank != 2) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have one dim or two, rows of categories; reshape it",
         ctx.op, to_string(x));
  }
  const int64_t samples = integer(ctx, "num_samples", num_samples), categories = x.dims[rank - 1];
  if (samples < 1) fail(ErrorCode::invalid_argument, "[{}] num_samples is {}, but must be 1 or more", ctx.op, samples);
  if (!replacement && samples > categories) {
    fail(ErrorCode::invalid_argument,
         "[{}] num_samples is {}, but x, which is {}, has {} categories; draw fewer, or with replacement", ctx.op,
         samples, to_string(x), categories);
  }
  Dims dims = x.dims;
  dims[rank - 1] = samples;
  check_size(ctx, dims, DType::int64);
  out = {dims, DType::int64};
}

}  // namespace shard::meta
