// Ops of indexing.yaml that are made of other ops, which slice, join and repeat tensors. Gradients are in
// gradients/indexing.cc.
#include <algorithm>
#include <limits>

#include "shard/meta/check.h"
#include "shard/ops/api.h"
#include "shard/ops/indexing_ops.h"

namespace shard::external {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

Tensor part(const Tensor& x, int axis, int64_t from, int64_t to) { return slice(x, {axis}, {from}, {to}); }

void check_rank(const char* op, const char* name, const Tensor& x, int least, int most = kMaxRank) {
  if (x.dims().rank() >= least && x.dims().rank() <= most) return;
  fail(ErrorCode::shape_mismatch, "[{}] {} is {}, but must have {} to {} dims", op, name, to_string(x.meta()), least,
       most);
}

/// True where the channels are the last dim.
bool channels_last(const char* op, const std::string& data_format, const char* first, const char* last) {
  if (data_format != first && data_format != last)
    fail(ErrorCode::invalid_argument, "[{}] data_format is '{}', but must be {} or {}", op, data_format, first, last);
  return data_format == last;
}

void check_divides(const char* op, const char* name, int64_t number, const Tensor& x, int axis) {
  if (number < 1) fail(ErrorCode::invalid_argument, "[{}] {} is {}, but must be 1 or more", op, name, number);
  if (x.dims()[axis] % number != 0) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, whose dim {} is {}, which {} must divide; it needs {}", op,
         to_string(x.meta()), axis, x.dims()[axis], number, name);
  }
}

/// The dims of a matrix within a tensor, counted from 0.
struct Plane {
  int rows;
  int columns;
};

Plane plane_of(const char* op, const char* rows_name, const char* columns_name, int rows, int columns, int rank) {
  const Plane plane = {normalize_axis(op, rows_name, rows, rank), normalize_axis(op, columns_name, columns, rank)};
  if (plane.rows == plane.columns) {
    fail(ErrorCode::invalid_argument, "[{}] {} is {} and {} is {}, which is the same dim; name two dims", op, rows_name,
         rows, columns_name, columns);
  }
  return plane;
}

/// All dims of a tensor but for the plane, and then those.
IntArray plane_last(const Plane& plane, int rank) {
  IntArray perm;
  for (int d = 0; d < rank; ++d) {
    if (d != plane.rows && d != plane.columns) perm.push_back(d);
  }
  perm.push_back(plane.rows);
  perm.push_back(plane.columns);
  return perm;
}

bool is_identity(const IntArray& perm) { return std::is_sorted(perm.begin(), perm.end()); }

/// The positions of a diagonal in a matrix of so many rows and columns whose elements are one dim.
struct Diagonal {
  int64_t first, end, step;

  Diagonal(int64_t rows, int64_t columns, int64_t offset)
      : first(offset >= 0 ? offset : -offset * columns), step(columns + 1) {
    const int64_t count = std::min(rows - std::max<int64_t>(-offset, 0), columns - std::max<int64_t>(offset, 0));
    if (count <= 0) first = 0;
    end = count <= 0 ? 0 : first + (count - 1) * step + 1;
  }
};

/// Square matrices of zeros with the last dim of x on a diagonal, as the last two dims.
Tensor embedded(const char* op, const Tensor& x, int64_t offset) {
  check_rank(op, "the tensor", x, 1, kMaxRank - 1);
  const int last = x.dims().rank() - 1;
  const int64_t size = x.dims()[last] + std::abs(offset);
  const Diagonal at(size, size, offset);
  Dims flat = x.dims(), dims = x.dims();
  flat[last] = size * size;
  dims[last] = size;
  dims.push_back(size);
  return reshape(unslice(x, flat, {last}, {at.first}, {at.end}, {at.step}), dims);
}

/// x with more elements along one dim, before and after those it has.
Tensor grown(const Tensor& x, int axis, int64_t before, int64_t after, const std::string& mode) {
  const int64_t size = x.dims()[axis], most = mode == "reflect"    ? size - 1
                                              : mode == "circular" ? size
                                              : size > 0           ? kEnd
                                                                   : 0;
  if (std::max(before, after) > most) {
    fail(ErrorCode::shape_mismatch,
         "[pad3d] x is {}, whose dim {} has too few elements for paddings {} and {} in mode {}", to_string(x.meta()),
         axis, before, after, mode);
  }
  std::vector<Tensor> parts = {x};
  const auto repeated = [&](int64_t element, int64_t count) {
    IntArray to(static_cast<size_t>(x.dims().rank()), -1);
    to[static_cast<size_t>(axis)] = count;
    return expand(part(x, axis, element, element + 1), to);
  };
  if (mode == "reflect") {
    if (before > 0) parts.insert(parts.begin(), strided_slice(x, {axis}, {before}, {0}, {-1}));
    if (after > 0) parts.push_back(strided_slice(x, {axis}, {size - 2}, {size - 2 - after}, {-1}));
  } else if (mode == "replicate") {
    if (before > 0) parts.insert(parts.begin(), repeated(0, before));
    if (after > 0) parts.push_back(repeated(size - 1, after));
  } else {
    if (before > 0) parts.insert(parts.begin(), part(x, axis, size - before, size));
    if (after > 0) parts.push_back(part(x, axis, 0, after));
  }
  return concat(parts, axis);
}

}  // namespace

Tensor flip(const Tensor& x, const IntArray& axis) {
  if (!axis.empty()) check_rank("flip", "x", x, 1);
  unsigned seen = 0;
  for (const int64_t a : axis) {
    const unsigned bit = 1u << normalize_axis("flip", "an axis", a, x.dims().rank());
    if ((seen & bit) != 0) fail(ErrorCode::invalid_argument, "[flip] axis {} names a dim twice", to_string(axis));
    seen |= bit;
  }
  const IntArray starts(axis.size(), kEnd), others(axis.size(), -1);  // an end of -1 is before the first element
  return strided_slice(x, axis, starts, others, others);
}

Tensor pad3d(const Tensor& x, const IntArray& paddings, const std::string& mode, float pad_value,
             const std::string& data_format) {
  check_rank("pad3d", "x", x, 5, 5);
  const int depth = channels_last("pad3d", data_format, "NCDHW", "NDHWC") ? 1 : 2;
  if (paddings.size() != 6 || std::any_of(paddings.begin(), paddings.end(), [](int64_t p) { return p < 0; })) {
    fail(ErrorCode::invalid_argument, "[pad3d] paddings is {}, but must have six numbers of 0 or more",
         to_string(paddings));
  }
  if (mode == "constant") {
    IntArray all(10, 0);
    for (size_t i = 0; i < 6; ++i) all[2 * (static_cast<size_t>(depth) + 2 - i / 2) + i % 2] = paddings[i];
    return pad(x, all, pad_value);
  }
  if (mode != "reflect" && mode != "replicate" && mode != "circular") {
    fail(ErrorCode::invalid_argument, "[pad3d] mode is '{}', but must be constant, reflect, replicate or circular",
         mode);
  }
  Tensor result = x;
  for (size_t i = 0; i < 6; i += 2) {
    if (paddings[i] != 0 || paddings[i + 1] != 0)
      result = grown(result, depth + 2 - static_cast<int>(i / 2), paddings[i], paddings[i + 1], mode);
  }
  return std::all_of(paddings.begin(), paddings.end(), [](int64_t p) { return p == 0; }) ? assign(x) : result;
}

Tensor index_sample(const Tensor& x, const Tensor& index) {
  check_rank("index_sample", "x", x, 2, 2);
  check_rank("index_sample", "index", index, 2, 2);
  return take_along_axis(x, index, 1);
}

Tensor repeat_interleave(const Tensor& x, int repeats, int axis) {
  check_rank("repeat_interleave", "x", x, 1, kMaxRank - 1);
  const int along = normalize_axis("repeat_interleave", "axis", axis, x.dims().rank());
  if (repeats < 0)
    fail(ErrorCode::invalid_argument, "[repeat_interleave] repeats is {}, but must be 0 or more", repeats);
  IntArray shape(static_cast<size_t>(x.dims().rank()) + 1, -1);
  shape[static_cast<size_t>(along) + 1] = repeats;
  return flatten(expand(unsqueeze(x, {along + 1}), shape), along, along + 1);
}

std::vector<Tensor> unstack(const Tensor& x, int axis, int num) {
  check_rank("unstack", "x", x, 1);
  const int64_t size = x.dims()[normalize_axis("unstack", "axis", axis, x.dims().rank())];
  if (num != 0 && num != size) {
    fail(ErrorCode::shape_mismatch, "[unstack] num is {}, but x is {}, which has {} slices along axis {}", num,
         to_string(x.meta()), size, axis);
  }
  return unbind(x, axis);
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& inputs) {
  const int rank = static_cast<int>(inputs.size());
  if (rank == 0 || rank > kMaxRank) {
    fail(ErrorCode::invalid_argument, "[meshgrid] inputs has {} tensors, but must have 1 to {}", rank, kMaxRank);
  }
  IntArray sizes;
  for (const Tensor& each : inputs) {
    check_rank("meshgrid", "a tensor of inputs", each, 0, 1);
    sizes.push_back(each.numel());
  }
  std::vector<Tensor> result;
  for (int i = 0; i < rank; ++i) {
    const Tensor& each = inputs[static_cast<size_t>(i)];
    IntArray added;  // inserted one after the other
    for (int d = each.dims().rank() == 0 ? 0 : 1; d <= i; ++d) added.push_back(0);
    for (int d = i + 1; d < rank; ++d) added.push_back(d);
    result.push_back(expand(unsqueeze(each, added), sizes));
  }
  return result;
}

std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& input) {
  if (input.empty())
    fail(ErrorCode::invalid_argument, "[broadcast_tensors] input is an empty list, but at least one tensor is needed");
  Dims dims = input[0].dims();
  for (const Tensor& each : input)
    dims = meta::broadcast({"broadcast_tensors"}, "the tensors before", dims, "a tensor of input", each.dims());
  std::vector<Tensor> result;
  for (const Tensor& each : input) result.push_back(expand(each, dims));
  return result;
}

Tensor diagonal(const Tensor& x, int offset, int axis1, int axis2) {
  check_rank("diagonal", "x", x, 2);
  const int rank = x.dims().rank();
  const Plane plane = plane_of("diagonal", "axis1", "axis2", axis1, axis2, rank);
  const IntArray perm = plane_last(plane, rank);
  const Diagonal at(x.dims()[plane.rows], x.dims()[plane.columns], offset);
  return strided_slice(flatten(is_identity(perm) ? x : transpose(x, perm), -2, -1), {-1}, {at.first}, {at.end},
                       {at.step});
}

Tensor diag(const Tensor& x, int offset, float padding_value) {
  check_rank("diag", "x", x, 1, 2);
  if (x.dims().rank() == 2) return shard::diagonal(x, offset, 0, 1);
  const Tensor result = embedded("diag", x, offset);
  if (padding_value == 0) return result;
  const Tensor on_diagonal = embedded("diag", cast(full_like(x, 1), DType::boolean), offset);
  return where(on_diagonal, result, full_like(result, padding_value));
}

Tensor diag_embed(const Tensor& input, int offset, int dim1, int dim2) {
  const Tensor matrices = embedded("diag_embed", input, offset);
  const int rank = matrices.dims().rank();
  const IntArray last = plane_last(plane_of("diag_embed", "dim1", "dim2", dim1, dim2, rank), rank);
  if (is_identity(last)) return matrices;
  IntArray perm = last;
  for (int d = 0; d < rank; ++d) perm[static_cast<size_t>(last[static_cast<size_t>(d)])] = d;
  return transpose(matrices, perm);
}

Tensor trace(const Tensor& x, int offset, int axis1, int axis2) {
  check_rank("trace", "x", x, 2);
  plane_of("trace", "axis1", "axis2", axis1, axis2, x.dims().rank());
  return sum(shard::diagonal(x, offset, axis1, axis2), {-1});
}

Tensor pixel_shuffle(const Tensor& x, int upscale_factor, const std::string& data_format) {
  check_rank("pixel_shuffle", "x", x, 4, 4);
  const bool last = channels_last("pixel_shuffle", data_format, "NCHW", "NHWC");
  const int64_t f = upscale_factor, n = x.dims()[0];
  check_divides("pixel_shuffle", "upscale_factor", f, x, last ? 3 : 1);
  check_divides("pixel_shuffle", "the square of upscale_factor", f * f, x, last ? 3 : 1);
  const int64_t c = x.dims()[last ? 3 : 1] / (f * f), h = x.dims()[last ? 1 : 2], w = x.dims()[last ? 2 : 3];
  const Tensor squares = reshape(x, last ? IntArray{n, h, w, c, f, f} : IntArray{n, c, f, f, h, w});
  return reshape(transpose(squares, {0, 1, 4, 2, 5, 3}),
                 last ? IntArray{n, h * f, w * f, c} : IntArray{n, c, h * f, w * f});
}

Tensor pixel_unshuffle(const Tensor& x, int downscale_factor, const std::string& data_format) {
  check_rank("pixel_unshuffle", "x", x, 4, 4);
  const bool last = channels_last("pixel_unshuffle", data_format, "NCHW", "NHWC");
  const int64_t f = downscale_factor, n = x.dims()[0];
  for (const int axis : {last ? 1 : 2, last ? 2 : 3}) check_divides("pixel_unshuffle", "downscale_factor", f, x, axis);
  const int64_t c = x.dims()[last ? 3 : 1], h = x.dims()[last ? 1 : 2] / f, w = x.dims()[last ? 2 : 3] / f;
  const Tensor squares = reshape(x, last ? IntArray{n, h, f, w, f, c} : IntArray{n, c, h, f, w, f});
  return reshape(transpose(squares, {0, 1, 3, 5, 2, 4}),
                 last ? IntArray{n, h, w, c * f * f} : IntArray{n, c * f * f, h, w});
}

Tensor channel_shuffle(const Tensor& x, int groups, const std::string& data_format) {
  check_rank("channel_shuffle", "x", x, 4, 4);
  const bool last = channels_last("channel_shuffle", data_format, "NCHW", "NHWC");
  const int axis = last ? 3 : 1;
  check_divides("channel_shuffle", "groups", groups, x, axis);
  Dims dims = x.dims();
  dims[axis] /= groups;
  dims.insert(axis, groups);
  return reshape(transpose(reshape(x, dims), last ? IntArray{0, 1, 2, 4, 3} : IntArray{0, 2, 1, 3, 4}), x.dims());
}

Tensor crop(const Tensor& x, const IntArray& shape, const IntArray& offsets) {
  const auto rank = static_cast<size_t>(x.dims().rank());
  if ((!shape.empty() && shape.size() != rank) || (!offsets.empty() && offsets.size() != rank)) {
    fail(ErrorCode::invalid_argument,
         "[crop] x is {}, shape {} and offsets {}, but shape and offsets must be empty or have a number for each dim",
         to_string(x.meta()), to_string(shape), to_string(offsets));
  }
  IntArray axes, starts, ends;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t size = x.dims()[static_cast<int>(d)], first = offsets.empty() ? 0 : offsets[d];
    const int64_t length = shape.empty() || shape[d] == -1 ? size - first : shape[d];
    if (first < 0 || length < 0 || first > size || length > size - first) {
      fail(ErrorCode::out_of_range, "[crop] x is {}, which has no part of shape {} at offsets {}", to_string(x.meta()),
           to_string(shape), to_string(offsets));
    }
    axes.push_back(static_cast<int64_t>(d));
    starts.push_back(first);
    ends.push_back(first + length);
  }
  return slice(x, axes, starts, ends);
}

Tensor temporal_shift(const Tensor& x, int seg_num, float shift_ratio, const std::string& data_format) {
  check_rank("temporal_shift", "x", x, 4, 4);
  const int channels = channels_last("temporal_shift", data_format, "NCHW", "NHWC") ? 4 : 2;
  check_divides("temporal_shift", "seg_num", seg_num, x, 0);
  if (!(shift_ratio >= 0 && shift_ratio <= 0.5f)) {
    fail(ErrorCode::invalid_argument, "[temporal_shift] shift_ratio is {}, but must be from 0 to 0.5", shift_ratio);
  }
  Dims dims = x.dims();
  dims[0] /= seg_num;
  dims.insert(1, seg_num);
  const int64_t count = dims[channels], frames = seg_num;
  const auto first = static_cast<int64_t>(static_cast<float>(count) * shift_ratio);
  const auto second = static_cast<int64_t>(static_cast<float>(count) * 2 * shift_ratio);
  const Tensor videos = reshape(x, dims);
  // The frames from `from` on of some channels, moved by one to the frames from `to` on.
  const auto moved = [&](int64_t from, int64_t to, int64_t low, int64_t high) {
    Dims shape = dims;
    shape[channels] = high - low;
    const Tensor kept = slice(videos, {1, channels}, {from, low}, {from + frames - 1, high});
    return unslice(kept, shape, {1}, {to}, {to + frames - 1}, {1});
  };
  return reshape(
      concat({moved(0, 1, 0, first), moved(1, 0, first, second), part(videos, channels, second, count)}, channels),
      x.dims());
}

Tensor maxout(const Tensor& x, int groups, int axis) {
  check_rank("maxout", "x", x, 1, kMaxRank - 1);
  const int along = normalize_axis("maxout", "axis", axis, x.dims().rank());
  check_divides("maxout", "groups", groups, x, along);
  Dims dims = x.dims();
  dims[along] /= groups;
  dims.insert(along + 1, groups);
  return max(reshape(x, dims), {along + 1});
}

}  // namespace shard::external
