// infer_meta of ops that make tensors from attributes, including random ones. Ops with tensor
// inputs are in the files of their families.
#include <cmath>
#include <cstdint>
#include <tuple>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The number of values start, start + step, ... before end.
int64_t arange_count(const OpContext& ctx, const Scalar& start, const Scalar& end, const Scalar& step) {
  if (start.is_integer() && end.is_integer() && step.is_integer()) {
    const int64_t by = step.to<int64_t>();
    const auto from = static_cast<uint64_t>(start.to<int64_t>());
    const auto to = static_cast<uint64_t>(end.to<int64_t>());
    const bool forward = by > 0;
    if (forward ? start.to<int64_t>() >= end.to<int64_t>() : start.to<int64_t>() <= end.to<int64_t>()) return 0;
    const uint64_t distance = forward ? to - from : from - to;
    const uint64_t stride = forward ? static_cast<uint64_t>(by) : uint64_t{0} - static_cast<uint64_t>(by);
    const uint64_t count = distance / stride + (distance % stride != 0 ? 1 : 0);
    return count > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(count);
  }
  const double count = std::ceil((end.to<double>() - start.to<double>()) / step.to<double>());
  if (!std::isfinite(count) || count >= 0x1p63) {
    fail(ErrorCode::out_of_range, "[{}] from {} to {} by {} is not a finite number of steps", ctx.op,
         start.to<double>(), end.to<double>(), step.to<double>());
  }
  return count <= 0 ? 0 : static_cast<int64_t>(count);
}

void check_float_dtype(const OpContext& ctx, DType dtype) {
  if (is_floating(dtype)) return;
  fail(ErrorCode::dtype_mismatch, "[{}] dtype is {}, but must be a float dtype; cast the result", ctx.op,
       to_string(dtype));
}

}  // namespace

void CreateInferMeta(const OpContext& ctx, const IntArray& shape, DType dtype, Meta& out) {
  for (const int64_t dim : shape) {
    if (dim < 0)
      fail(ErrorCode::out_of_range, "[{}] shape {} has the negative dim {}; dims must be 0 or more", ctx.op,
           to_string(shape), dim);
  }
  check_size(ctx, shape, dtype);
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    fail(ErrorCode::out_of_range, "[{}] shape {} has {} dims; a tensor has at most {}", ctx.op, to_string(shape),
         shape.size(), kMaxRank);
  }
  out = {Dims(std::span<const int64_t>(shape)), dtype};
}

void EyeInferMeta(const OpContext& ctx, const Scalar& num_rows, const Scalar& num_columns, DType dtype, Meta& out) {
  const int64_t rows = integer(ctx, "num_rows", num_rows), columns = integer(ctx, "num_columns", num_columns);
  for (const auto& [name, count, least] : {std::tuple("num_rows", rows, 0), std::tuple("num_columns", columns, -1)}) {
    if (count < least)
      fail(ErrorCode::out_of_range, "[{}] {} is {}, but must be {} or more", ctx.op, name, count, least);
  }
  CreateInferMeta(ctx, {rows, columns == -1 ? rows : columns}, dtype, out);
}

void ArangeInferMeta(const OpContext& ctx, const Scalar& start, const Scalar& end, const Scalar& step, DType dtype,
                     Meta& out) {
  if (step.to<double>() == 0 || !std::isfinite(step.to<double>())) {
    fail(ErrorCode::invalid_argument, "[{}] step is {}, but must be a number other than 0", ctx.op, step.to<double>());
  }
  out = {Dims{arange_count(ctx, start, end, step)}, dtype};
  check_size(ctx, out.dims, dtype);
}

void LinspaceInferMeta(const OpContext& ctx, int64_t number, DType dtype, Meta& out) {
  if (number < 1)
    fail(ErrorCode::invalid_argument, "[{}] the number of elements is {}, but must be at least 1", ctx.op, number);
  out = {Dims{number}, dtype};
  check_size(ctx, out.dims, dtype);
}

void UniformInferMeta(const OpContext& ctx, const IntArray& shape, DType dtype, const Scalar& min, const Scalar& max,
                      Meta& out) {
  CreateInferMeta(ctx, shape, dtype, out);
  check_float_dtype(ctx, dtype);
  if (!(min.to<double>() <= max.to<double>())) {
    fail(ErrorCode::invalid_argument, "[{}] min is {} and max is {}, but min must not be larger; swap them", ctx.op,
         min.to<double>(), max.to<double>());
  }
}

void GaussianInferMeta(const OpContext& ctx, const IntArray& shape, float std, DType dtype, Meta& out) {
  CreateInferMeta(ctx, shape, dtype, out);
  check_float_dtype(ctx, dtype);
  if (!(std >= 0)) fail(ErrorCode::invalid_argument, "[{}] std is {}, but must be 0 or more", ctx.op, std);
}

void RandintInferMeta(const OpContext& ctx, int low, int high, const IntArray& shape, DType dtype, Meta& out) {
  CreateInferMeta(ctx, shape, dtype, out);
  check_index(ctx, "out", out);
  if (low >= high) {
    fail(ErrorCode::invalid_argument, "[{}] low is {} and high is {}, but low must be smaller; swap them", ctx.op, low,
         high);
  }
}

void RandpermInferMeta(const OpContext& ctx, int n, DType dtype, Meta& out) {
  if (n < 0) fail(ErrorCode::invalid_argument, "[{}] n is {}, but must be 0 or more", ctx.op, n);
  CreateInferMeta(ctx, {n}, dtype, out);
  check_index(ctx, "out", out);
}

}  // namespace shard::meta
