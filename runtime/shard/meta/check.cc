// The checks of check.h.
#include "shard/meta/check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shard::meta {

void check_size(const OpContext& ctx, std::span<const int64_t> dims, DType dtype) {
  int64_t bytes = static_cast<int64_t>(size_of(dtype));
  bool overflow = false;
  for (int64_t dim : dims) {
    if (dim < 0) {
      fail(ErrorCode::out_of_range, "[{}] a dim of the result {} is {}; dims must be 0 or more", ctx.op,
           to_string(IntArray(dims)), dim);
    }
    overflow = __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes) || overflow;
  }
  if (overflow) {
    fail(ErrorCode::out_of_range,
         "[{}] the result {} of dtype {} would have more bytes than an int64 can count; make a dim smaller", ctx.op,
         to_string(IntArray(dims)), to_string(dtype));
  }
}

int64_t most_rows(DType indices, int64_t width, DType dtype) {
  // 8 bytes at least, for kernels that list rows.
  const int64_t bytes = std::max<int64_t>(width * static_cast<int64_t>(size_of(dtype)), 8);
  const int64_t counted = indices == DType::int32 ? int64_t{1} << 31 : std::numeric_limits<int64_t>::max();
  return std::min(counted, std::numeric_limits<int64_t>::max() / bytes);
}

void check_floating(const OpContext& ctx, std::string_view name, const Meta& x) {
  if (is_floating(x.dtype)) return;
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but must be of a float dtype; cast it first", ctx.op, name,
       to_string(x));
}

void check_not_empty(const OpContext& ctx, std::string_view name, std::span<const Meta> list) {
  if (list.empty()) fail(ErrorCode::invalid_argument, "[{}] {} is empty, but must have a tensor", ctx.op, name);
}

void check_index(const OpContext& ctx, std::string_view name, const Meta& x) {
  if (x.dtype == DType::int32 || x.dtype == DType::int64) return;
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but must be int32 or int64; cast it first", ctx.op, name,
       to_string(x));
}

void fail_dtypes(const OpContext& ctx, std::string_view x_name, const Meta& x, std::string_view y_name, const Meta& y) {
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {} and {} is {}, but their dtypes must be equal; cast one of them",
       ctx.op, x_name, to_string(x), y_name, to_string(y));
}

void check_like_forward(const OpContext& ctx, std::string_view name, const Meta& x, const Meta& expected) {
  if (x == expected) return;
  fail(x.dtype == expected.dtype ? ErrorCode::shape_mismatch : ErrorCode::dtype_mismatch,
       "[{}] {} is {}, but for the other arguments it must be {}, as in the forward op", ctx.op, name, to_string(x),
       to_string(expected));
}

Dims broadcast(const OpContext& ctx, std::string_view x_name, const Dims& x, std::string_view y_name, const Dims& y) {
  if (x == y) return x;
  const Dims& longer = x.rank() >= y.rank() ? x : y;
  const Dims& shorter = x.rank() >= y.rank() ? y : x;
  const int offset = longer.rank() - shorter.rank();
  Dims out = longer;
  for (int i = 0; i < shorter.rank(); ++i) {
    const int64_t a = longer[i + offset];
    const int64_t b = shorter[i];
    if (a != b && a != 1 && b != 1) {
      fail(ErrorCode::shape_mismatch,
           "[{}] {} has the shape {} and {} has {}, which do not broadcast: dims counted from the last must be equal "
           "or 1; "
           "reshape or expand one of them",
           ctx.op, x_name, to_string(x), y_name, to_string(y));
    }
    out[i + offset] = a == 1 ? b : a;
  }
  return out;
}

int64_t integer(const OpContext& ctx, std::string_view name, const Scalar& value) {
  if (!value.is_integer() && value.to<double>() != std::floor(value.to<double>())) {
    fail(ErrorCode::invalid_argument, "[{}] {} is {}, but must be an integer", ctx.op, name, value.to<double>());
  }
  return value.to<int64_t>();
}

}  // namespace shard::meta
