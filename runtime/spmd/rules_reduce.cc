// Rules of reductions, argmax and cumsum. Rules that move dims stand in rules_shape.cc.
#include <algorithm>

#include "spmd/builtin_rules.h"
#include "spmd/notation.h"

namespace shard::spmd {
namespace {

/// The dims that attribute `axis` names; all where it is empty.
std::vector<bool> reduced_dims(const RuleArgs& args) {
  const int rank = args.tensors[0].meta.dims.rank();
  const IntArray axes = args.integers("axis");
  std::vector<bool> reduced(static_cast<size_t>(rank), axes.empty());
  for (int64_t axis : axes) {
    if (rank > 0) reduced[static_cast<size_t>(normalize_axis(args.op.name, "axis", axis, rank))] = true;
  }
  return reduced;
}

RuleResult reduction(const RuleArgs& args, ReduceType type) {
  Notation n;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims)};
  n.outputs = {{}};
  const std::vector<bool> reduced = reduced_dims(args);
  const bool keep = args.flag("keepdim");
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d]) {
      n.letters[d].role = Letter::Role::reduce;
      n.letters[d].type = type;
    }
    if (!reduced[d]) n.outputs[0].push_back(n.inputs[0][d]);
    else if (keep) n.outputs[0].push_back(kNoLetter);
  }
  return solve(args, n);
}

RuleResult sum(const RuleArgs& args) { return reduction(args, ReduceType::sum); }
RuleResult max(const RuleArgs& args) { return reduction(args, ReduceType::max); }
RuleResult min(const RuleArgs& args) { return reduction(args, ReduceType::min); }
RuleResult prod(const RuleArgs& args) { return reduction(args, ReduceType::prod); }

/// The positions of the winners are global, so the searched dims stay whole.
RuleResult argmax(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = {{}};
  const bool flatten = args.flag("flatten");
  const int axis = dims.rank() == 0 ? -1 : normalize_axis(args.op.name, "axis", flatten ? 0 : args.integer("axis"), dims.rank());
  for (int d = 0; d < dims.rank(); ++d) {
    const auto i = static_cast<size_t>(d);
    const bool searched = flatten || d == axis;
    if (searched) n.letters[i].role = Letter::Role::whole;
    if (!searched) n.outputs[0].push_back(n.inputs[0][i]);
    else if (args.flag("keepdims")) n.outputs[0].push_back(kNoLetter);
  }
  // A flattened result may have fewer dims than this names.
  n.outputs[0].resize(static_cast<size_t>(args.outputs[0].dims.rank()), kNoLetter);
  return solve(args, n);
}

/// Sums run along one axis, or over all elements in row-major order.
RuleResult cumsum(const RuleArgs& args) {
  const Dims& dims = args.tensors[0].meta.dims;
  if (args.flag("flatten")) {
    Notation n;
    n.inputs = {fresh_letters(n, dims, Letter::Role::whole)};
    n.outputs = {std::vector<int>(static_cast<size_t>(args.outputs[0].dims.rank()), kNoLetter)};
    return solve(args, n);
  }
  Notation n;
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = n.inputs;
  if (dims.rank() > 0) n.letters[static_cast<size_t>(normalize_axis(args.op.name, "axis", args.integer("axis"), dims.rank()))].role = Letter::Role::whole;
  return solve(args, n);
}

}  // namespace

void register_reduction_rules() {
  register_rule("ReductionSumInferSpmd", sum);
  register_rule("ReductionMeanInferSpmd", sum);  // local means are divided by the global count, so they add up
  register_rule("ReductionMaxInferSpmd", max);
  register_rule("ReductionMinInferSpmd", min);
  register_rule("ReductionProdInferSpmd", prod);
  register_rule("ArgMaxInferSpmd", argmax);
  register_rule("CumsumInferSpmd", cumsum);
}

}  // namespace shard::spmd
