// Shapes of the outputs of calls, as far as placement needs them: always ranks, and sizes where a
// rule reads them.
#include <numeric>

#include "rules.h"
#include "shard/core/error.h"

namespace spmd_cases {
namespace {

using shard::Dims;
using shard::ErrorCode;
using shard::fail;

[[noreturn]] void refuse(const Call& call, std::string_view problem) {
  fail(ErrorCode::shape_mismatch, "({}): {}", call.signature.text, problem);
}

int axis_of(const Call& call, std::string_view attr, int64_t value, int rank) {
  if (rank == 0) refuse(call, "a tensor without dims has no axis");
  return shard::normalize_axis(call.signature.text, attr, value, rank);
}

/// The dims that a list attribute names. An empty list names all of them.
std::vector<bool> named(const Call& call, std::string_view attr, int rank) {
  const shard::IntArray& axes = call.integers(attr);
  std::vector<bool> result(static_cast<size_t>(rank), axes.empty());
  for (int64_t axis : axes) {
    if (rank > 0) result[static_cast<size_t>(axis_of(call, attr, axis, rank))] = true;
  }
  return result;
}

/// The shape of a reshape to `target`: 0 copies a dim of `in`, one -1 is the remaining size.
Dims resolved(const Call& call, const Dims& in, std::span<const int64_t> target) {
  Dims out;
  int unknown = -1;
  for (size_t i = 0; i < target.size(); ++i) {
    int64_t size = target[i];
    if (size == 0 && static_cast<int>(i) < in.rank()) size = in[static_cast<int>(i)];
    if (size == -1 && unknown >= 0) refuse(call, "the shape has two sizes of -1");
    if (size == -1) unknown = static_cast<int>(i);
    out.push_back(size == -1 ? 1 : size);
  }
  if (unknown >= 0) {
    if (out.numel() == 0 || in.numel() % out.numel() != 0) refuse(call, "the size for -1 is not a whole number");
    out[unknown] = in.numel() / out.numel();
  }
  if (out.numel() != in.numel())
    refuse(call, "the shapes have different numbers of elements: " + to_string(in) + " and " + to_string(out));
  return out;
}

Dims without_first(const Dims& dims) {
  Dims result = dims;
  if (result.rank() > 0) result.erase(0);
  return result;
}

}  // namespace

Shapes given_shapes(const Call& call) { return {call.given}; }
Shapes scalar_shapes(const Call&) { return {{Dims{}}}; }

Shapes broadcast_shapes(const Call& call) {
  Dims out;
  for (const auto& tensor : call.tensors) {
    const Dims& dims = tensor.meta.dims;
    while (out.rank() < dims.rank()) out.insert(0, 1);
    for (int d = 0; d < dims.rank(); ++d) {
      int64_t& size = out[out.rank() - dims.rank() + d];
      if (size == 1) size = dims[d];
    }
  }
  return {{out}};
}

Shapes swiglu_shapes(const Call& call) {
  if (!call.present(1) && call.dims(0).rank() == 0) refuse(call, "a tensor without dims has no halves");
  return {{call.dims(0)}};
}

Shapes matmul_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const Dims& y = call.dims(1);
  if (x.rank() == 0 || y.rank() == 0) refuse(call, "matmul takes tensors of one dim or more");
  if ((call.flag("transpose_x") && x.rank() < 2) || (call.flag("transpose_y") && y.rank() < 2))
    refuse(call, "a vector cannot be transposed");
  const Dims& wide = x.rank() >= y.rank() ? x : y;
  Dims out;
  for (int d = 0; d < wide.rank() - 2; ++d) {
    const int64_t a = d - wide.rank() + x.rank() >= 0 ? x[d - wide.rank() + x.rank()] : 1;
    const int64_t b = d - wide.rank() + y.rank() >= 0 ? y[d - wide.rank() + y.rank()] : 1;
    out.push_back(a == 1 ? b : a);
  }
  if (x.rank() > 1) out.push_back(x[x.rank() - (call.flag("transpose_x") ? 1 : 2)]);
  if (y.rank() > 1) out.push_back(y[y.rank() - (call.flag("transpose_y") ? 2 : 1)]);
  return {{out}};
}

Shapes reduction_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const std::vector<bool> reduced = named(call, "axis", x.rank());
  Dims out;
  for (int d = 0; d < x.rank(); ++d) {
    if (!reduced[static_cast<size_t>(d)]) out.push_back(x[d]);
    else if (call.flag("keepdim")) out.push_back(1);
  }
  return {{out}};
}

Shapes argmax_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  if (call.flag("flatten")) return {{call.flag("keepdims") ? Dims::filled(x.rank(), 1) : Dims{1}}};
  Dims out = x;
  if (x.rank() == 0) return {{out}};
  const int axis = axis_of(call, "axis", call.integer("axis"), x.rank());
  if (call.flag("keepdims")) out[axis] = 1;
  else out.erase(axis);
  return {{out}};
}

Shapes cumsum_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  return {{call.flag("flatten") ? Dims{x.numel()} : x}};
}

Shapes cross_entropy_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  Dims loss = x;
  loss[axis_of(call, "axis", call.integer("axis"), x.rank())] = 1;
  // In this case the peer has no softmax output, but counts it.
  const bool softmax = call.flag("use_softmax") || !call.compat;
  return {{softmax ? x : Dims{}}, {loss}};
}

Shapes layer_norm_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const int64_t begin = call.integer("begin_norm_axis");
  if (begin < 0 || begin > x.rank()) refuse(call, "begin_norm_axis is not a dim of x");
  Dims leading;
  for (int d = 0; d < begin; ++d) leading.push_back(x[d]);
  return {{x}, {leading}, {leading}};
}

Shapes rms_norm_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  if (x.rank() == 0) refuse(call, "x has no dims");
  Dims leading = x;
  leading.erase(x.rank() - 1);
  return {{x}, {leading}};
}

Shapes embedding_shapes(const Call& call) {
  if (call.dims(1).rank() != 2) refuse(call, "the table has two dims");
  Dims out = call.dims(0);
  out.push_back(call.dims(1)[1]);
  return {{out}};
}

Shapes gather_shapes(const Call& call) {
  Dims out = call.dims(0);
  const int axis = axis_of(call, "axis", call.integer("axis"), out.rank());
  out.erase(axis);
  const Dims& index = call.dims(1);
  for (int d = 0; d < index.rank(); ++d) out.insert(axis + d, index[d]);
  return {{out}};
}

Shapes gather_nd_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  Dims out = call.dims(1);
  if (out.rank() == 0) refuse(call, "the index has no dims");
  const int64_t chosen = out[out.rank() - 1];
  if (chosen < 0 || chosen > x.rank()) refuse(call, "the last dim of the index names more dims than x has");
  out.erase(out.rank() - 1);
  for (int64_t d = chosen; d < x.rank(); ++d) out.push_back(x[static_cast<int>(d)]);
  return {{out}};
}

Shapes one_hot_shapes(const Call& call) {
  Dims out = call.dims(0);
  const auto* classes = std::get_if<int64_t>(&call.attr("num_classes"));
  out.push_back(classes == nullptr ? 1 : *classes);
  return {{out}};
}

Shapes tile_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const shard::IntArray& repeats = call.integers("repeat_times");
  const int rank = static_cast<int>(repeats.size());
  if (rank < x.rank()) refuse(call, "repeat_times has fewer values than x has dims");
  Dims out;
  for (int d = 0; d < rank; ++d)
    out.push_back(repeats[static_cast<size_t>(d)] * (d < rank - x.rank() ? 1 : x[d - rank + x.rank()]));
  return {{out}};
}

Shapes expand_as_shapes(const Call& call) {
  return {{call.present(1) ? call.dims(1) : Dims(call.integers("target_shape"))}};
}

Shapes transpose_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const shard::IntArray& perm = call.integers("perm");
  if (static_cast<int>(perm.size()) != x.rank()) refuse(call, "perm does not name each dim once");
  Dims out;
  for (int64_t axis : perm) out.push_back(x[axis_of(call, "perm", axis, x.rank())]);
  return {{out}};
}

Shapes transpose_grad_shapes(const Call& call) {
  const Dims& grad = call.dims(0);
  const shard::IntArray& perm = call.integers("perm");
  if (static_cast<int>(perm.size()) != grad.rank()) refuse(call, "perm does not name each dim once");
  Dims x = grad;
  for (int d = 0; d < grad.rank(); ++d) x[axis_of(call, "perm", perm[static_cast<size_t>(d)], grad.rank())] = grad[d];
  return {{x}};
}

Shapes reshape_shapes(const Call& call) {
  if (!call.backward) return {{resolved(call, call.dims(0), call.integers("shape"))}};
  return {{resolved(call, call.dims(0), call.given[0])}};
}

Shapes flatten_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  if (x.rank() == 0) return {{Dims{1}}};
  const int start = axis_of(call, "start_axis", call.integer("start_axis"), x.rank());
  const int stop = axis_of(call, "stop_axis", call.integer("stop_axis"), x.rank());
  if (start > stop) refuse(call, "start_axis comes after stop_axis");
  Dims out;
  for (int d = 0; d < start; ++d) out.push_back(x[d]);
  out.push_back(x.numel(start, stop + 1));
  for (int d = stop + 1; d < x.rank(); ++d) out.push_back(x[d]);
  return {{out}};
}

Shapes squeeze_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const std::vector<bool> dropped = named(call, "axis", x.rank());
  Dims out;
  for (int d = 0; d < x.rank(); ++d) {
    if (!dropped[static_cast<size_t>(d)] || x[d] != 1) out.push_back(x[d]);
  }
  return {{out}};
}

Shapes unsqueeze_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const shard::IntArray& axes = call.integers("axis");
  const int rank = x.rank() + static_cast<int>(axes.size());
  std::vector<bool> added(static_cast<size_t>(rank), false);
  for (int64_t axis : axes) {
    // The peer counts each negative axis from the end of x plus one new dim, however many dims are
    // new.
    const int64_t at = axis < 0 && call.compat ? axis + x.rank() + 1 : axis;
    added[static_cast<size_t>(axis_of(call, "axis", at, rank))] = true;
  }
  Dims out;
  int next = 0;
  for (int d = 0; d < rank; ++d) out.push_back(added[static_cast<size_t>(d)] || next == x.rank() ? 1 : x[next++]);
  return {{out}};
}

Shapes reshape_grad_shapes(const Call& call) {
  // xshape has a first dim of its own, unless the case leaves it out.
  const Dims& xshape = call.dims(0);
  return {{xshape.numel() == call.dims(1).numel() ? xshape : without_first(xshape)}};
}

Shapes strided_slice_shapes(const Call& call) {
  for (int64_t axis : call.integers("axes")) axis_of(call, "axes", axis, call.dims(0).rank());
  return {{call.dims(0)}};
}

Shapes slice_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  for (int64_t axis : call.integers("axes")) axis_of(call, "axes", axis, x.rank());
  std::vector<bool> dropped(static_cast<size_t>(x.rank()), false);
  // The peer's rule ignores decrease_axis.
  if (!call.compat) {
    for (int64_t axis : call.integers("decrease_axis"))
      dropped[static_cast<size_t>(axis_of(call, "decrease_axis", axis, x.rank()))] = true;
  }
  Dims out;
  for (int d = 0; d < x.rank(); ++d) {
    if (!dropped[static_cast<size_t>(d)]) out.push_back(x[d]);
  }
  return {{out}};
}

Shapes split_shapes(const Call& call) {
  const auto* num = std::get_if<int64_t>(&call.attrs[0]);
  const size_t parts = num != nullptr ? static_cast<size_t>(std::max<int64_t>(*num, 0))
                                      : std::get<shard::IntArray>(call.attrs[0]).size();
  axis_of(call, "axis", call.integer("axis"), call.dims(0).rank());
  if (call.backward && call.given.size() != parts)
    refuse(call, "the case lists another number of outputs than the split has");
  return {std::vector<Dims>(parts, call.dims(0))};
}

Shapes concat_shapes(const Call& call) {
  for (const auto& tensor : call.tensors) {
    if (tensor.meta.dims.rank() > 0 && tensor.meta.dims[0] != 0) {
      axis_of(call, "axis", call.integer("axis"), tensor.meta.dims.rank());
      return {{tensor.meta.dims}};
    }
  }
  return {{call.tensors.empty() ? Dims{} : call.tensors[0].meta.dims}};
}

Shapes concat_grad_shapes(const Call& call) {
  Shapes shapes(1);
  for (size_t i = 0; i < call.slots[0].count; ++i) shapes[0].push_back(call.tensors[i].meta.dims);
  return shapes;
}

Shapes stack_shapes(const Call& call) {
  if (call.tensors.empty()) refuse(call, "no tensors to stack");
  Dims out = call.dims(0);
  const int axis = axis_of(call, "axis", call.integer("axis"), out.rank() + 1);
  out.insert(axis, static_cast<int64_t>(call.tensors.size()));
  return {{out}};
}

Shapes stack_grad_shapes(const Call& call) {
  Dims part = call.dims(0);
  const int axis = axis_of(call, "axis", call.integer("axis"), part.rank());
  const auto count = static_cast<size_t>(std::clamp<int64_t>(part[axis], 0, 4096));
  part.erase(axis);
  return {std::vector<Dims>(count, part)};
}

Shapes unbind_shapes(const Call& call) { return stack_grad_shapes(call); }

Shapes flash_attention_shapes(const Call& call) {
  const Dims& q = call.dims(0);
  const Dims& k = call.dims(1);
  const Dims& v = call.dims(2);
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4)
    refuse(call, "q, k and v have dims [batch, sequence, heads, head size]");
  if (q[0] != k[0] || q[0] != v[0]) refuse(call, "q, k and v have different batch sizes");
  if (k[2] == 0 || v[2] == 0 || q[2] % k[2] != 0 || q[2] % v[2] != 0)
    refuse(call, "the heads of q are not a multiple of those of k and v");
  if (q[3] != k[3]) refuse(call, "q and k have different head sizes");
  if (k[1] != v[1]) refuse(call, "k and v have sequences of different lengths");
  if (call.signature.outputs.size() == 3) return {{q}, {k}, {v}};
  return {{Dims{q[0], q[1], q[2], v[3]}}, {Dims{q[0], q[2], q[1], k[1]}}, {Dims{q[0], q[2], q[1]}}, {call.dims(3)}};
}

Shapes rope_grad_shapes(const Call& call) { return {{call.dims(3)}, {call.dims(4)}, {call.dims(5)}}; }

Shapes linear_grad_shapes(const Call& call) {
  const Dims& x = call.dims(0);
  const Dims& dout = call.dims(1);
  if (x.rank() < 2 || x.rank() != dout.rank())
    refuse(call, "x and dout have different numbers of dims, or fewer than two");
  const int64_t columns = dout[dout.rank() - 1];
  return {{Dims{x[x.rank() - 1], columns}}, {call.flag("has_bias") ? Dims{columns} : Dims{}}};
}

Shapes scatter_grad_shapes(const Call& call) { return {{call.dims(2)}, {call.dims(1)}}; }

}  // namespace spmd_cases
