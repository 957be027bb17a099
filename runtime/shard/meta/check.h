// Checks that infer_meta functions of several families share. A check that only one family needs is
// in its own .cc.
#pragma once

#include <string_view>

#include "shard/core/op_context.h"

namespace shard::meta {

/// The global shape of flat input `i`, whose meta in this call is `x`.
inline const Dims& global_dims(const OpContext& ctx, size_t i, const Meta& x) {
  return ctx.local != nullptr && i < ctx.local->inputs.size() ? ctx.local->inputs[i].global : x.dims;
}

/// Throws out_of_range for a negative dim or when the bytes do not fit into int64.
void check_size(const OpContext& ctx, std::span<const int64_t> dims, DType dtype);
/// The largest number of rows, of `width` elements of `dtype`, of a result whose rows are those that indices name: as
/// many as indices of that dtype can count, and bytes fit into int64.
int64_t most_rows(DType indices, int64_t width, DType dtype);
/// Throws dtype_mismatch unless `x` is of a float dtype.
void check_floating(const OpContext& ctx, std::string_view name, const Meta& x);
/// Throws invalid_argument for an empty list, whose first tensor would say which kernel is called.
void check_not_empty(const OpContext& ctx, std::string_view name, std::span<const Meta> list);
/// Throws dtype_mismatch unless `x` is int32 or int64.
void check_index(const OpContext& ctx, std::string_view name, const Meta& x);
[[noreturn]] void fail_dtypes(const OpContext& ctx, std::string_view x_name, const Meta& x, std::string_view y_name,
                              const Meta& y);
/// Throws dtype_mismatch unless both dtypes are equal.
inline void check_same_dtype(const OpContext& ctx, std::string_view x_name, const Meta& x, std::string_view y_name,
                             const Meta& y) {
  if (x.dtype != y.dtype) fail_dtypes(ctx, x_name, x, y_name, y);
}
/// Throws dtype_mismatch or shape_mismatch unless `x`, an argument or result of the forward op or a
/// gradient of one, matches the other arguments.
void check_like_forward(const OpContext& ctx, std::string_view name, const Meta& x, const Meta& expected);
/// The common shape of both by NumPy's broadcasting rules; throws shape_mismatch.
Dims broadcast(const OpContext& ctx, std::string_view x_name, const Dims& x, std::string_view y_name, const Dims& y);
/// The value of an attribute that must be an integer; throws invalid_argument.
int64_t integer(const OpContext& ctx, std::string_view name, const Scalar& value);
/// The dtype of statistics of `x`: float32 for 16-bit floats, else its own.
inline DType statistics_dtype(DType x) { return x == DType::float64 ? x : DType::float32; }

}  // namespace shard::meta
