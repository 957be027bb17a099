// infer_meta of ops that concatenate, split or slice tensors. Ops that keep all elements of one
// tensor are in shape.cc.
#include "shard/core/slice_range.h"
#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

void check_list(const OpContext& ctx, std::span<const Meta> x) {
  if (x.empty())
    fail(ErrorCode::invalid_argument, "[{}] x is an empty list, but at least one tensor is needed", ctx.op);
  for (size_t i = 1; i < x.size(); ++i) {
    if (x[i].dtype == x[0].dtype) continue;
    fail(ErrorCode::dtype_mismatch, "[{}] x[0] is {} and x[{}] is {}, but their dtypes must be equal; cast one of them",
         ctx.op, to_string(x[0]), i, to_string(x[i]));
  }
}

/// The dims of a slice; without steps they are 1.
Dims sliced_dims(const OpContext& ctx, std::string_view name, const Meta& x, const IntArray& axes,
                 const IntArray& starts, const IntArray& ends, const IntArray& steps) {
  if (starts.size() != axes.size() || ends.size() != axes.size()) {
    fail(ErrorCode::invalid_argument, "[{}] axes {}, starts {} and ends {} must have equally many values", ctx.op,
         to_string(axes), to_string(starts), to_string(ends));
  }
  const int rank = x.dims.rank();
  Dims dims = x.dims;
  unsigned seen = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = normalize_axis(ctx.op, "an axis of axes", axes[i], rank);
    if (rank == 0)
      fail(ErrorCode::shape_mismatch, "[{}] {} is {}, which has no dim to slice", ctx.op, name, to_string(x));
    if (seen >> axis & 1u)
      fail(ErrorCode::invalid_argument, "[{}] axes {} has the dim {} twice", ctx.op, to_string(axes), axis);
    seen |= 1u << axis;
    if (!steps.empty() && steps[i] == 0)
      fail(ErrorCode::invalid_argument, "[{}] strides {} has a 0; a stride must not be 0", ctx.op, to_string(steps));
    dims[axis] = slice_range(x.dims[axis], starts[i], ends[i], steps.empty() ? 1 : steps[i]).count;
  }
  return dims;
}

/// The dims of the rows of x that an index of shape [n] or [n, 1], the input `index_slot`, selects.
Dims rows_at(const OpContext& ctx, std::string_view name, const Meta& x, const Meta& index, size_t index_slot) {
  check_index(ctx, "index", index);
  const Dims& positions = global_dims(ctx, index_slot, index);
  if (x.dims.rank() == 0 || (positions.rank() != 1 && !(positions.rank() == 2 && positions[1] == 1))) {
    fail(ErrorCode::shape_mismatch,
         "[{}] {} is {} and index is {}, but {} needs a dim and index must be [n] or [n, 1]; reshape index", ctx.op,
         name, to_string(x), to_string(index), name);
  }
  Dims rows = x.dims;
  rows[0] = positions[0];
  return rows;
}

}  // namespace

void ConcatInferMeta(const OpContext& ctx, std::span<const Meta> x, const Scalar& axis, Meta& out) {
  check_list(ctx, x);
  const int along = normalize_axis(ctx.op, "axis", integer(ctx, "axis", axis), x[0].dims.rank());
  if (x[0].dims.rank() == 0) {
    fail(ErrorCode::shape_mismatch, "[{}] x[0] is {}, but only tensors with dims can be joined; use stack", ctx.op,
         to_string(x[0]));
  }
  out = x[0];
  for (size_t i = 1; i < x.size(); ++i) {
    bool fits = x[i].dims.rank() == out.dims.rank();
    for (int d = 0; fits && d < out.dims.rank(); ++d) fits = d == along || x[i].dims[d] == out.dims[d];
    if (!fits) {
      fail(ErrorCode::shape_mismatch, "[{}] x[0] is {} and x[{}] is {}, but all dims other than axis {} must be equal",
           ctx.op, to_string(x[0]), i, to_string(x[i]), along);
    }
    out.dims[along] += x[i].dims[along];
  }
  check_size(ctx, out.dims, out.dtype);
}

void StackInferMeta(const OpContext& ctx, std::span<const Meta> x, int axis, Meta& out) {
  check_list(ctx, x);
  for (size_t i = 1; i < x.size(); ++i) {
    if (x[i].dims == x[0].dims) continue;
    fail(ErrorCode::shape_mismatch, "[{}] x[0] is {} and x[{}] is {}, but their shapes must be equal", ctx.op,
         to_string(x[0]), i, to_string(x[i]));
  }
  out = x[0];
  out.dims.insert(normalize_axis(ctx.op, "axis", axis, x[0].dims.rank() + 1), static_cast<int64_t>(x.size()));
  check_size(ctx, out.dims, out.dtype);
}

void SplitInferMeta(const OpContext& ctx, const Meta& x, const IntArray& sections, const Scalar& axis,
                    std::vector<Meta>& out) {
  const int along = normalize_axis(ctx.op, "axis", integer(ctx, "axis", axis), x.dims.rank());
  if (x.dims.rank() == 0)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, which has no dim to split", ctx.op, to_string(x));
  int64_t known = 0;
  int rest = 0;
  for (int64_t section : sections) {
    if (section < -1)
      fail(ErrorCode::out_of_range, "[{}] sections {} has the negative size {}", ctx.op, to_string(sections), section);
    rest += section == -1 ? 1 : 0;
    if (section >= 0 && __builtin_add_overflow(known, section, &known)) known = INT64_MAX;
  }
  const bool fits = rest == 0 ? known == x.dims[along] : rest == 1 && known <= x.dims[along];
  if (!fits) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {}, whose dim {} is {}, but sections {} add up to {}; they must cover it, with at most one -1 for "
         "the rest",
         ctx.op, to_string(x), along, x.dims[along], to_string(sections), known);
  }
  out.assign(sections.size(), x);
  for (size_t i = 0; i < sections.size(); ++i) {
    out[i].dims[along] = sections[i] == -1 ? x.dims[along] - known : sections[i];
  }
}

void SplitWithNumInferMeta(const OpContext& ctx, const Meta& x, int num, const Scalar& axis, std::vector<Meta>& out) {
  const int along = normalize_axis(ctx.op, "axis", integer(ctx, "axis", axis), x.dims.rank());
  if (x.dims.rank() == 0)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, which has no dim to split", ctx.op, to_string(x));
  if (num < 1 || x.dims[along] % num != 0) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {}, whose dim {} is {}, but num is {}, and must divide it; use split for unequal parts", ctx.op,
         to_string(x), along, x.dims[along], num);
  }
  out.assign(static_cast<size_t>(num), x);
  for (Meta& part : out) part.dims[along] /= num;
}

void UnbindInferMeta(const OpContext& ctx, const Meta& input, int axis, std::vector<Meta>& out) {
  const int along = normalize_axis(ctx.op, "axis", axis, input.dims.rank());
  if (input.dims.rank() == 0)
    fail(ErrorCode::shape_mismatch, "[{}] input is {}, which has no dim to unbind", ctx.op, to_string(input));
  Meta part = input;
  part.dims.erase(along);
  out.assign(static_cast<size_t>(input.dims[along]), part);
}

void StridedSliceInferMeta(const OpContext& ctx, const Meta& x, const IntArray& axes, const IntArray& starts,
                           const IntArray& ends, const IntArray& strides, Meta& out) {
  if (strides.size() != axes.size()) {
    fail(ErrorCode::invalid_argument, "[{}] axes {} and strides {} must have equally many values", ctx.op,
         to_string(axes), to_string(strides));
  }
  out = {sliced_dims(ctx, "x", x, axes, starts, ends, strides), x.dtype};
}

void UnsliceInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shape, const IntArray& axes,
                      const IntArray& starts, const IntArray& ends, const IntArray& strides, Meta& out) {
  if (shape.size() != static_cast<size_t>(x.dims.rank())) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, so shape must have {} dims, but is {}", ctx.op, to_string(x),
         x.dims.rank(), to_string(shape));
  }
  check_size(ctx, shape, x.dtype);
  Meta slice;
  out = {Dims{std::span<const int64_t>(shape)}, x.dtype};
  StridedSliceInferMeta(ctx, out, axes, starts, ends, strides, slice);
  if (slice == x) return;
  fail(ErrorCode::shape_mismatch, "[{}] the slice of {} along axes {} from {} to {} by {} is {}, but x is {}", ctx.op,
       to_string(out), to_string(axes), to_string(starts), to_string(ends), to_string(strides), to_string(slice),
       to_string(x));
}

void SliceInferMeta(const OpContext& ctx, const Meta& input, const IntArray& axes, const IntArray& starts,
                    const IntArray& ends, const IntArray& decrease_axis, Meta& out) {
  const int rank = input.dims.rank();
  const Dims dims = sliced_dims(ctx, "input", input, axes, starts, ends, {});
  unsigned dropped = 0;
  for (int64_t a : decrease_axis) {
    const int axis = normalize_axis(ctx.op, "an axis of decrease_axis", a, rank);
    if (dims[axis] != 1 && ctx.local == nullptr) {
      fail(ErrorCode::shape_mismatch,
           "[{}] decrease_axis names dim {}, which has {} elements after slicing {}; only a 1 can be dropped", ctx.op,
           axis, dims[axis], to_string(input));
    }
    dropped |= 1u << axis;
  }
  out = {Dims(), input.dtype};
  for (int i = 0; i < rank; ++i) {
    if ((dropped >> i & 1u) == 0) out.dims.push_back(dims[i]);
  }
}

void GatherInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Scalar& axis, Meta& out) {
  check_index(ctx, "index", index);
  const int along = normalize_axis(ctx.op, "axis", integer(ctx, "axis", axis), x.dims.rank());
  if (x.dims.rank() == 0 || index.dims.rank() > 1) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {} and index is {}, but x needs a dim and index at most one; flatten index", ctx.op, to_string(x),
         to_string(index));
  }
  out = x;
  if (index.dims.rank() == 0) out.dims.erase(along);
  else out.dims[along] = index.dims[0];
  check_size(ctx, out.dims, out.dtype);
}

void IndexSumInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, int64_t size, int axis, Meta& out) {
  check_index(ctx, "index", index);
  const int along = normalize_axis(ctx.op, "axis", axis, x.dims.rank());
  if (x.dims.rank() == 0 || index.dims.rank() != 1 || index.dims[0] != x.dims[along]) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {} and index is {}, but index must have one dim, with a number for each slice of x along axis {}",
         ctx.op, to_string(x), to_string(index), axis);
  }
  out = x;
  out.dims[along] = size;
  check_size(ctx, out.dims, out.dtype);
}

void ScatterInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Meta& updates, bool, Meta& out) {
  check_same_dtype(ctx, "x", x, "updates", updates);
  const Dims expected = rows_at(ctx, "x", x, index, 1);
  out = x;
  if (updates.dims == expected) return;
  fail(ErrorCode::shape_mismatch, "[{}] x is {} and index is {}, so updates must be {}, but is {}", ctx.op,
       to_string(x), to_string(index), to_string(expected), to_string(updates));
}

void ScatterGradInferMeta(const OpContext& ctx, const Meta& index, const Meta& out_grad, Meta& x_grad,
                          Meta& updates_grad) {
  updates_grad = {rows_at(ctx, "out_grad", out_grad, index, 0), out_grad.dtype};
  x_grad = out_grad;
}

void OneHotInferMeta(const OpContext& ctx, const Meta& x, const Scalar& num_classes, Meta& out) {
  check_index(ctx, "x", x);
  out = {x.dims, DType::float32};
  out.dims.push_back(integer(ctx, "num_classes", num_classes));
  check_size(ctx, out.dims, out.dtype);
}

}  // namespace shard::meta
