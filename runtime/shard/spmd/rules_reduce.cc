// Rules of allclose, argmax, cumprod, cumsum, frobenius_norm, histogram, logsumexp, nanmedian, norm, numel, p_norm and topk, and the names of the expressions of
// reductions. Rules that move dims are in rules_shape.cc.
#include <cmath>
#include <string>

#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

size_t index_of_axis(const RuleArgs& args, const char* name = "axis") {
  return static_cast<size_t>(normalize_axis(args.op.name, name, args.integer(name), args.tensors[0].meta.dims.rank()));
}

/// The searched dims are not sharded, unless the kernel combines the winners of their shards.
RuleResult argmax(const RuleArgs& args, Letter::Role of_searched) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = {{}};
  const bool flatten = args.flag("flatten");
  const int axis =
      dims.rank() == 0 ? -1 : normalize_axis(args.op.name, "axis", flatten ? 0 : args.integer("axis"), dims.rank());
  for (int d = 0; d < dims.rank(); ++d) {
    const auto i = static_cast<size_t>(d);
    const bool searched = flatten || d == axis;
    if (searched) n.letters[i].role = of_searched;
    if (!searched) n.outputs[0].push_back(n.inputs[0][i]);
    else if (args.flag("keepdims")) n.outputs[0].push_back(kNoLetter);
  }
  // A flattened result may have fewer dims.
  n.outputs[0].resize(static_cast<size_t>(args.outputs[0].dims.rank()), kNoLetter);
  return solve(args, n);
}

/// An expression reduces the dims that an attribute names: here all of them are.
RuleResult allclose(const RuleArgs& args) {
  Notation n;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims, Letter::Role::reduce)};
  for (Letter& letter : n.letters) letter.type = ReduceType::all;
  n.inputs.push_back(n.inputs[0]);
  n.outputs = {{}};
  return solve(args, n);
}

/// Counts of shards add up, unless the range depends on all elements.
RuleResult histogram(const RuleArgs& args) {
  const bool range_of_elements = args.integer("min") == args.integer("max");
  Notation n;
  n.inputs = {
      fresh_letters(n, args.tensors[0].meta.dims, range_of_elements ? Letter::Role::whole : Letter::Role::reduce)};
  n.outputs = {{kNoLetter}};
  return solve(args, n);
}

/// Sums run along one axis, or over all elements in row-major order. The axis is not sharded, unless the kernel
/// combines the sums of its parts.
RuleResult cumsum(const RuleArgs& args, Letter::Role of_axis) {
  const Dims& dims = args.tensors[0].meta.dims;
  Notation n;
  if (args.flag("flatten")) {
    n.inputs = {fresh_letters(n, dims, Letter::Role::whole)};
    n.outputs = {std::vector<int>(static_cast<size_t>(args.outputs[0].dims.rank()), kNoLetter)};
    return solve(args, n);
  }
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = n.inputs;
  if (dims.rank() > 0) n.letters[index_of_axis(args)].role = of_axis;
  return solve(args, n);
}

/// The kernel gathers of each part of a line its product and two running ones, each a mantissa and an exponent of 8 bytes, and
/// a number, or a product of integers.
RuleResult cumprod(const RuleArgs& args) {
  Notation n;
  const Meta& x = args.tensors[0].meta;
  n.inputs = n.outputs = {fresh_letters(n, x.dims)};
  if (x.dims.rank() > 0) {
    Letter& line = n.letters[index_of_axis(args, "dim")];
    line.role = Letter::Role::combined;
    line.gathered = is_floating(x.dtype) ? 56 : static_cast<int64_t>(size_of(x.dtype));
  }
  return solve(args, n);
}

/// The kernel gathers k elements of each part of a line, with their indices. The result has all of its k.
RuleResult topk(const RuleArgs& args) {
  Notation n;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims)};
  std::vector<int> out = n.inputs[0];
  if (!out.empty()) {
    const size_t axis = index_of_axis(args);
    n.letters[axis].role = Letter::Role::combined;
    n.letters[axis].gathered = 16 * args.outputs[0].dims[static_cast<int>(axis)];
    out[axis] = kNoLetter;
  }
  n.outputs = {out, out};
  return solve(args, n);
}

/// A reduction over `axes`, all dims where there are none. Reduced dims may be sharded where their letters say so.
RuleResult reduction(const RuleArgs& args, const IntArray& axes, bool keeps_dims, const Letter& reduced) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  std::vector<bool> is_reduced(static_cast<size_t>(dims.rank()), axes.empty());
  for (const int64_t axis : axes) {
    const int place = normalize_axis(args.op.name, "axis", axis, dims.rank());
    if (dims.rank() > 0) is_reduced[static_cast<size_t>(place)] = true;
  }
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = {{}};
  for (size_t d = 0; d < is_reduced.size(); ++d) {
    if (is_reduced[d]) {
      n.letters[d].role = reduced.role;
      n.letters[d].type = reduced.type;
      if (keeps_dims) n.outputs[0].push_back(kNoLetter);
    } else {
      n.outputs[0].push_back(n.inputs[0][d]);
    }
  }
  return solve(args, n);
}

/// The kernel sums the squares of all shards before it takes the root, so reduced dims may be
/// sharded and nothing is pending.
RuleResult frobenius_norm(const RuleArgs& args) {
  return reduction(args, args.flag("reduce_all") ? IntArray() : args.integers("axis"), args.flag("keep_dim"),
                   {.role = Letter::Role::collective});
}

/// The kernel combines the largest elements of all shards, and then their sums.
RuleResult logsumexp(const RuleArgs& args) {
  return reduction(args, args.flag("reduce_all") ? IntArray() : args.integers("axis"), args.flag("keepdim"),
                   {.role = Letter::Role::combined});
}

/// Where a root is taken the kernel sums the powers of all shards before. Else what shards have is pending.
RuleResult p_norm(const RuleArgs& args) {
  const double order = std::get<double>(args.attr("porder"));
  Letter reduced{.role = Letter::Role::combined};
  if (order == 0 || order == 1 || std::isinf(order)) reduced.role = Letter::Role::reduce;
  if (std::isinf(order)) reduced.type = order > 0 ? ReduceType::max : ReduceType::min;
  return reduction(args, args.flag("asvector") ? IntArray() : IntArray{args.integer("axis")}, args.flag("keepdim"),
                   reduced);
}

/// The kernel combines what all shards have of the axis; each has the norms of its lines.
RuleResult norm(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = {n.inputs[0], n.inputs[0]};
  if (dims.rank() > 0) {
    const size_t axis = index_of_axis(args);
    n.letters[axis].role = Letter::Role::combined;
    n.outputs[1][axis] = kNoLetter;
  }
  return solve(args, n);
}

/// The reduced dims are whole. The places of the two elements in the middle are in a last dim.
RuleResult nanmedian(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  const IntArray axes = args.integers("axis");
  n.inputs = {fresh_letters(n, dims, axes.empty() ? Letter::Role::whole : Letter::Role::map)};
  if (dims.rank() > 0) {
    for (const int64_t axis : axes)
      n.letters[static_cast<size_t>(normalize_axis(args.op.name, "axis", axis, dims.rank()))].role =
          Letter::Role::whole;
  }
  n.outputs = {{}};
  for (const int letter : n.inputs[0]) {
    if (n.letters[static_cast<size_t>(letter)].role == Letter::Role::map) n.outputs[0].push_back(letter);
    else if (args.flag("keepdim")) n.outputs[0].push_back(kNoLetter);
  }
  n.outputs.push_back(n.outputs[0]);
  if (std::get<std::string>(args.attr("mode")) == "avg") n.outputs[1].push_back(kNoLetter);
  return solve(args, n);
}

/// No element is read: x keeps its layout, including pending reductions, and every rank knows the
/// global shape.
RuleResult numel(const RuleArgs& args) {
  RuleResult result = infer_replicated(args);
  if (args.wanted.empty()) result.inputs[0] = args.tensors[0].spec->layout();
  return result;
}

}  // namespace

void register_reduction_rules() {
  register_rule("ReductionSumInferSpmd", "...{axis:sum} -> ...{-axis?keepdim}");
  register_rule("ReductionMeanInferSpmd",
                "...{axis:sum} -> ...{-axis?keepdim}");  // local means are divided by the global count, so they add up
  register_rule("ReductionMaxInferSpmd", "...{axis:max} -> ...{-axis?keepdim}");
  register_rule("ReductionMinInferSpmd", "...{axis:min} -> ...{-axis?keepdim}");
  register_rule("ReductionProdInferSpmd", "...{axis:prod} -> ...{-axis?keepdim}");
  register_rule("ReductionAllInferSpmd", "...{axis:all} -> ...{-axis?keepdim}");
  register_rule("ReductionAnyInferSpmd", "...{axis:any} -> ...{-axis?keepdim}");
  register_rule("AllCloseInferSpmd", allclose);
  register_rule("ArgMaxInferSpmd", [](const RuleArgs& args) { return argmax(args, Letter::Role::whole); });
  register_rule("CombinedArgMaxInferSpmd", [](const RuleArgs& args) { return argmax(args, Letter::Role::combined); });
  register_rule("CumsumInferSpmd", [](const RuleArgs& args) { return cumsum(args, Letter::Role::whole); });
  register_rule("CombinedCumsumInferSpmd", [](const RuleArgs& args) { return cumsum(args, Letter::Role::combined); });
  register_rule("CombinedCumprodInferSpmd", cumprod);
  register_rule("CombinedTopKInferSpmd", topk);
  register_rule("CombinedLogsumexpInferSpmd", logsumexp);
  register_rule("CombinedNormInferSpmd", norm);
  register_rule("CombinedPNormInferSpmd", p_norm);
  register_rule("FrobeniusNormInferSpmd", frobenius_norm);
  register_rule("HistogramInferSpmd", histogram);
  register_rule("NanmedianInferSpmd", nanmedian);
  register_rule("NumelInferSpmd", numel);
}

}  // namespace shard::spmd
