// infer_meta of ops that draw from distributions whose parameters are tensors.
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {

void UniformInplaceInferMeta(const OpContext& ctx, const Meta& x, float min, float max, int diag_num, int diag_step,
                             Meta& out) {
  check_floating(ctx, "x", x);
  if (!(min <= max)) {
    fail(ErrorCode::invalid_argument, "[{}] min is {} and max is {}, but min must not be larger; swap them", ctx.op,
         min, max);
  }
  if (diag_num < 0 || diag_step < 0) {
    fail(ErrorCode::invalid_argument, "[{}] diag_num is {} and diag_step is {}, but both must be 0 or more", ctx.op,
         diag_num, diag_step);
  }
  const int64_t last = (static_cast<int64_t>(diag_num) - 1) * (static_cast<int64_t>(diag_step) + 1);
  const int64_t count = global_dims(ctx, 0, x).numel();
  if (last >= count && diag_num > 0) {
    fail(ErrorCode::out_of_range,
         "[{}] diag_num is {} and diag_step is {}, so the last element would be {}, but x has {}", ctx.op, diag_num,
         diag_step, last, count);
  }
  out = x;
}

void GaussianInplaceInferMeta(const OpContext& ctx, const Meta& x, float std, Meta& out) {
  check_floating(ctx, "x", x);
  if (!(std >= 0)) fail(ErrorCode::invalid_argument, "[{}] std is {}, but must be 0 or more", ctx.op, std);
  out = x;
}

void ExponentialInferMeta(const OpContext& ctx, const Meta& x, float lam, Meta& out) {
  check_floating(ctx, "x", x);
  if (!(lam > 0)) fail(ErrorCode::invalid_argument, "[{}] lam is {}, but must be above 0", ctx.op, lam);
  out = x;
}

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

void TopPSamplingInferMeta(const OpContext& ctx, const Meta& x, const Meta& ps, const Meta* threshold, Meta& out,
                           Meta& ids) {
  check_floating(ctx, "x", x);
  const Dims& dims = global_dims(ctx, 0, x);
  if (dims.rank() != 2 || (dims[0] > 0 && dims[1] == 0)) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must be [rows, categories], with a category for each row",
         ctx.op, to_string(x));
  }
  const auto check_rows = [&](size_t slot, std::string_view name, const Meta& each) {
    check_same_dtype(ctx, "x", x, name, each);
    const Dims& own = global_dims(ctx, slot, each);
    if (own == Dims{dims[0]} || own == Dims{dims[0], 1}) return;
    fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must be [{}] or [{}, 1], an element for each row of x", ctx.op,
         name, to_string(each), dims[0], dims[0]);
  };
  check_rows(1, "ps", ps);
  if (threshold != nullptr) check_rows(2, "threshold", *threshold);
  out = {Dims{x.dims[0], 1}, x.dtype};
  ids = {Dims{x.dims[0], 1}, DType::int64};
}

}  // namespace shard::meta
