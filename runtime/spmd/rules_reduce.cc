// Rules of argmax and cumsum, and the names of the expressions of reductions. Rules that move dims stand in rules_shape.cc.
#include "spmd/builtin_rules.h"
#include "spmd/notation.h"

namespace shard::spmd {
namespace {

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
  register_rule("ReductionSumInferSpmd", "...{axis:sum} -> ...{-axis?keepdim}");
  register_rule("ReductionMeanInferSpmd", "...{axis:sum} -> ...{-axis?keepdim}");  // local means are divided by the global count, so they add up
  register_rule("ReductionMaxInferSpmd", "...{axis:max} -> ...{-axis?keepdim}");
  register_rule("ReductionMinInferSpmd", "...{axis:min} -> ...{-axis?keepdim}");
  register_rule("ReductionProdInferSpmd", "...{axis:prod} -> ...{-axis?keepdim}");
  register_rule("ArgMaxInferSpmd", argmax);
  register_rule("CumsumInferSpmd", cumsum);
}

}  // namespace shard::spmd
