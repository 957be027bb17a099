// Rules of ops that move elements by attributes or by tensors of indices. Those of gathers of whole slices are in
// rules_shape.cc.
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

size_t axis_of(const RuleArgs& args, int rank) {
  return static_cast<size_t>(normalize_axis(args.op.name, "axis", args.integer("axis"), rank));
}

/// Dims that are rolled are not sharded; without an axis all are.
RuleResult roll(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  const IntArray axes = args.integers("axis");
  n.inputs = {fresh_letters(n, dims, axes.empty() ? Letter::Role::whole : Letter::Role::map)};
  for (const int64_t axis : axes)
    n.letters[static_cast<size_t>(normalize_axis(args.op.name, "an axis", axis, dims.rank()))].role =
        Letter::Role::whole;
  n.outputs = n.inputs;
  return solve(args, n);
}

/// Dims that grow are not sharded.
RuleResult pad(const RuleArgs& args) {
  Notation n;
  const Dims &from = args.tensors[0].meta.dims, &to = args.outputs[0].dims;
  n.inputs = {fresh_letters(n, from)};
  for (int d = 0; d < from.rank(); ++d) {
    if (from[d] != to[d]) n.letters[static_cast<size_t>(d)].role = Letter::Role::whole;
  }
  n.outputs = n.inputs;
  return solve(args, n);
}

bool pads_with_zero(const RuleArgs& args) { return std::get<Scalar>(args.attr("pad_value")).to<double>() == 0; }

/// The last dim is whole where it changes its size.
RuleResult view_dtype(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  if (!(dims == args.outputs[0].dims)) n.letters.back().role = Letter::Role::whole;
  n.outputs = n.inputs;
  return solve(args, n);
}

/// Each rank adds to its own slices: all dims of x may be sharded. The rows of the index are whole, and
/// the slices follow those of x.
RuleResult scatter_nd_add(const RuleArgs& args) {
  Notation n;
  const Dims &x = args.tensors[0].meta.dims, &index = args.tensors[1].meta.dims;
  n.inputs = {fresh_letters(n, x), fresh_letters(n, index, Letter::Role::whole)};
  std::vector<int> updates(n.inputs[1].begin(), n.inputs[1].end() - 1);
  updates.insert(updates.end(), n.inputs[0].begin() + index[index.rank() - 1], n.inputs[0].end());
  n.inputs.push_back(updates);
  n.outputs = {n.inputs[0]};
  return solve(args, n);
}

/// Each rank adds to its own slices, so the axis of x may be sharded, but neither the index nor that axis of the added
/// values.
RuleResult index_add(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, x), fresh_letters(n, args.tensors[1].meta.dims, Letter::Role::whole)};
  n.inputs.push_back(n.inputs[0]);
  n.inputs[2][axis_of(args, x.rank())] = n.inputs[1][0];
  n.outputs = {n.inputs[0]};
  return solve(args, n);
}

/// Each lane along the axis is looked up on its own. The axis of arr is whole, and that of the indices is a dim of its
/// own.
RuleResult take_along_axis(const RuleArgs& args) {
  Notation n;
  const Dims &arr = args.tensors[0].meta.dims, &indices = args.tensors[1].meta.dims;
  const size_t axis = axis_of(args, arr.rank());
  n.inputs = {fresh_letters(n, arr)};
  n.letters[axis].role = Letter::Role::whole;
  n.inputs.push_back(n.inputs[0]);
  n.inputs[1][axis] = n.add({.size = indices[static_cast<int>(axis)]});
  n.outputs = {n.inputs[1]};
  return solve(args, n);
}

/// Each rank writes its own part of arr, so its axis may be sharded, but not that of the indices and values.
RuleResult put_along_axis(const RuleArgs& args) {
  Notation n;
  const Dims &arr = args.tensors[0].meta.dims, &indices = args.tensors[1].meta.dims;
  const size_t axis = axis_of(args, arr.rank());
  n.inputs = {fresh_letters(n, arr)};
  n.inputs.push_back(n.inputs[0]);
  n.inputs[1][axis] = n.add({.role = Letter::Role::whole, .size = indices[static_cast<int>(axis)]});
  n.inputs.push_back(n.inputs[1]);
  n.outputs = {n.inputs[0]};
  return solve(args, n);
}

}  // namespace

void register_indexing_rules() {
  register_rule("RollInferSpmd", roll);
  register_rule("PadInferSpmd", pad);
  register_guard("PadsWithZero", pads_with_zero);
  register_rule("ViewDTypeInferSpmd", view_dtype);
  register_rule("ScatterNdAddInferSpmd", scatter_nd_add);
  register_rule("IndexAddInferSpmd", index_add);
  register_rule("TakeAlongAxisInferSpmd", take_along_axis);
  register_rule("PutAlongAxisInferSpmd", put_along_axis);
}

}  // namespace shard::spmd
