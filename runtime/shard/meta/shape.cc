// infer_meta of ops that change the shape of one tensor. Ops that concatenate or split tensors are
// in slicing.cc.
#include <algorithm>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The product of the dims that are not 0.
int64_t product_without_zeros(const Dims& dims) {
  int64_t product = 1;
  for (const int64_t size : dims) product *= size == 0 ? 1 : size;
  return product;
}

/// Throws for a second -1.
void check_one_inferred(const OpContext& ctx, const Dims& shape) {
  if (std::count(shape.begin(), shape.end(), -1) <= 1) return;
  fail(ErrorCode::invalid_argument, "[{}] shape {} has more than one -1; write all dims but one", ctx.op,
       to_string(shape));
}

/// For an x without elements: each 0 is a size of 0, because a shape that keeps dims of x need not
/// be valid for x. Only a -1 is replaced: if there is also a 0, by the size that makes the other
/// dims agree, else by 0.
void resolve_empty(const OpContext& ctx, const Meta& x, Dims& shape) {
  check_one_inferred(ctx, shape);
  const auto at = static_cast<int>(std::find(shape.begin(), shape.end(), -1) - shape.begin());
  if (at == shape.rank()) return;
  shape[at] = 0;
  check_size(ctx, shape, x.dtype);
  Dims others = shape;
  others.erase(at);
  if (others.numel() != 0) return;
  const int64_t total = product_without_zeros(x.dims), known = product_without_zeros(others);
  shape[at] = total % known == 0 ? total / known : 0;
}

/// Replaces 0 by the dim of x and -1 by the remaining size.
void resolve_shape(const OpContext& ctx, const Meta& x, Dims& shape) {
  if (x.numel() == 0) return resolve_empty(ctx, x, shape);
  int inferred = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      if (inferred >= 0) check_one_inferred(ctx, shape);
      inferred = i;
      continue;
    }
    if (shape[i] == 0 && i >= x.dims.rank()) {
      fail(ErrorCode::out_of_range,
           "[{}] shape {} has a 0 at {}, which keeps a dim of x, but x is {}; write the number", ctx.op,
           to_string(shape), i, to_string(x));
    }
    if (shape[i] == 0) shape[i] = x.dims[i];
    if (shape[i] < 0) {
      fail(ErrorCode::out_of_range, "[{}] shape {} has the negative dim {}; only -1 has a meaning", ctx.op,
           to_string(shape), shape[i]);
    }
    if (__builtin_mul_overflow(known, shape[i], &known)) {
      fail(ErrorCode::shape_mismatch, "[{}] shape {} has more elements than x, which is {}", ctx.op, to_string(shape),
           to_string(x));
    }
  }
  if (inferred < 0) return;
  const int64_t total = x.numel();
  if (known == 0 || total % known != 0) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} with {} elements, which the -1 in shape {} cannot divide by {}",
         ctx.op, to_string(x), total, to_string(shape), known);
  }
  shape[inferred] = total / known;
}

}  // namespace

void ReshapeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shape, Meta& out) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    fail(ErrorCode::out_of_range, "[{}] shape {} has {} dims; a tensor has at most {}", ctx.op, to_string(shape),
         shape.size(), kMaxRank);
  }
  Dims dims{std::span<const int64_t>(shape)};
  if (ctx.local == nullptr) resolve_shape(ctx, x, dims);
  // Otherwise the shape is as large as x, which has been checked.
  if (ctx.local != nullptr || x.numel() == 0) check_size(ctx, dims, x.dtype);
  if (dims.numel() != x.numel()) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} with {} elements, but shape {} has {}; both must have equally many",
         ctx.op, to_string(x), x.numel(), to_string(dims), dims.numel());
  }
  out = {dims, x.dtype};
}

void FlattenInferMeta(const OpContext& ctx, const Meta& x, int start_axis, int stop_axis, Meta& out) {
  if (x.dims.rank() == 0) {
    normalize_axis(ctx.op, "start_axis", start_axis, 1);
    normalize_axis(ctx.op, "stop_axis", stop_axis, 1);
    out = {Dims{1}, x.dtype};
    return;
  }
  const int first = normalize_axis(ctx.op, "start_axis", start_axis, x.dims.rank());
  const int last = normalize_axis(ctx.op, "stop_axis", stop_axis, x.dims.rank());
  if (first > last) {
    fail(ErrorCode::invalid_argument, "[{}] start_axis {} comes after stop_axis {} of x, which is {}; swap them",
         ctx.op, start_axis, stop_axis, to_string(x));
  }
  Dims dims;
  for (int i = 0; i < first; ++i) dims.push_back(x.dims[i]);
  dims.push_back(x.dims.numel(first, last + 1));
  for (int i = last + 1; i < x.dims.rank(); ++i) dims.push_back(x.dims[i]);
  out = {dims, x.dtype};
}

void SqueezeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, Meta& out) {
  const Dims& global = global_dims(ctx, 0, x);
  unsigned chosen = axis.empty() ? ~0u : 0u;
  for (int64_t a : axis) chosen |= 1u << normalize_axis(ctx.op, "axis", a, x.dims.rank());
  Dims dims;
  for (int i = 0; i < x.dims.rank(); ++i) {
    if (global[i] != 1 || (chosen >> i & 1u) == 0) dims.push_back(x.dims[i]);
  }
  out = {dims, x.dtype};
}

void UnsqueezeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axis, Meta& out) {
  Dims dims = x.dims;
  for (int64_t a : axis) dims.insert(normalize_axis(ctx.op, "axis", a, dims.rank() + 1), 1);
  out = {dims, x.dtype};
}

void TransposeInferMeta(const OpContext& ctx, const Meta& x, const IntArray& perm, Meta& out) {
  Dims dims;
  unsigned seen = 0;
  if (static_cast<int>(perm.size()) == x.dims.rank()) {
    for (int64_t p : perm) {
      const int axis = normalize_axis(ctx.op, "an axis of perm", p, x.dims.rank());
      seen |= 1u << axis;
      dims.push_back(x.dims[axis]);
    }
  }
  if (static_cast<int>(perm.size()) != x.dims.rank() || seen != (1u << x.dims.rank()) - 1u) {
    fail(ErrorCode::invalid_argument, "[{}] perm is {}, but must name each of the {} dims of x, which is {}, once",
         ctx.op, to_string(perm), x.dims.rank(), to_string(x));
  }
  out = {dims, x.dtype};
}

void ExpandInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shape, Meta& out) {
  const int added = static_cast<int>(shape.size()) - x.dims.rank();
  if (added < 0 || shape.size() > static_cast<size_t>(kMaxRank)) {
    fail(ErrorCode::shape_mismatch, "[{}] shape {} must have from {} (the dims of x, which is {}) to {} dims", ctx.op,
         to_string(shape), x.dims.rank(), to_string(x), kMaxRank);
  }
  Dims dims{std::span<const int64_t>(shape)};
  for (int i = 0; i < x.dims.rank(); ++i) {
    const int64_t from = x.dims[i];
    int64_t& to = dims[i + added];
    if (to == -1 && ctx.local == nullptr) to = from;
    if (to != from && from != 1) {
      fail(ErrorCode::shape_mismatch,
           "[{}] x is {}, whose dim {} of size {} cannot become {} in shape {}; only a 1 grows", ctx.op, to_string(x),
           i, from, to, to_string(shape));
    }
  }
  check_size(ctx, dims, x.dtype);
  out = {dims, x.dtype};
}

void ExpandAsInferMeta(const OpContext& ctx, const Meta& x, const Meta* y, const IntArray& target_shape, Meta& out) {
  ExpandInferMeta(ctx, x, y == nullptr ? target_shape : IntArray(y->dims), out);
}

void TileInferMeta(const OpContext& ctx, const Meta& x, const IntArray& repeat_times, Meta& out) {
  const size_t rank = std::max(repeat_times.size(), static_cast<size_t>(x.dims.rank()));
  if (rank > static_cast<size_t>(kMaxRank)) {
    fail(ErrorCode::out_of_range, "[{}] repeat_times {} has {} numbers; a tensor has at most {} dims", ctx.op,
         to_string(repeat_times), rank, kMaxRank);
  }
  out = x;
  while (out.dims.rank() < static_cast<int>(rank)) out.dims.insert(0, 1);
  for (size_t i = 0; i < repeat_times.size(); ++i) {
    int64_t& dim = out.dims[static_cast<int>(rank - repeat_times.size() + i)];
    if (repeat_times[i] < 0 || __builtin_mul_overflow(dim, repeat_times[i], &dim)) {
      fail(ErrorCode::invalid_argument,
           "[{}] x is {}, which cannot be repeated {} times; use numbers of 0 or more, small enough for the result",
           ctx.op, to_string(x), to_string(repeat_times));
    }
  }
  check_size(ctx, out.dims, out.dtype);
}

void TriangleInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  if (x.dims.rank() < 2) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have at least two dims; a diagonal needs rows and columns",
         ctx.op, to_string(x));
  }
  out = x;
}

}  // namespace shard::meta
