// Rules of ops that move, concatenate or slice dims. The rule of reshape has a file of its own.
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

int axis_of(const RuleArgs& args, std::string_view name, int rank) {
  return normalize_axis(args.op.name, name, args.integer(name), rank);
}

/// No element of the input is read: it keeps its layout, pending or not, and the output is sharded
/// alike.
RuleResult full_like(const RuleArgs& args) {
  Notation n;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims)};
  n.outputs = n.inputs;
  if (!args.wanted.empty()) return solve(args, n);
  RuleResult result;
  result.inputs = {args.tensors[0].spec->layout()};
  result.outputs = result.inputs;
  result.outputs[0].partial = {};
  return result;
}

/// Dims that grow from 1, or are new, are not sharded.
RuleResult expand(const RuleArgs& args) {
  Notation n;
  const Dims& in = args.tensors[0].meta.dims;
  const Dims& out = args.outputs[0].dims;
  n.inputs = {fresh_letters(n, in)};
  n.inputs.resize(args.tensors.size());  // an absent y of expand_as
  n.outputs = {std::vector<int>(static_cast<size_t>(out.rank()), kNoLetter)};
  const int lead = out.rank() - in.rank();
  for (int d = 0; d < in.rank(); ++d) {
    const auto i = static_cast<size_t>(d);
    if (in[d] == out[lead + d]) n.outputs[0][static_cast<size_t>(lead + d)] = n.inputs[0][i];
    else n.letters[i].role = Letter::Role::whole;
  }
  return solve(args, n);
}

/// Dims that are repeated, or are new, are not sharded.
RuleResult tile(const RuleArgs& args) {
  Notation n;
  const Dims& in = args.tensors[0].meta.dims;
  const IntArray repeats = args.integers("repeat_times");
  const int rank = args.outputs[0].dims.rank(), lead = rank - in.rank(),
            unnamed = rank - static_cast<int>(repeats.size());
  n.inputs = {fresh_letters(n, in)};
  n.outputs = {std::vector<int>(static_cast<size_t>(lead), kNoLetter)};
  for (int d = lead; d < rank; ++d) {
    const int letter = n.inputs[0][static_cast<size_t>(d - lead)];
    if (d >= unnamed && repeats[static_cast<size_t>(d - unnamed)] != 1)
      n.letters[static_cast<size_t>(letter)].role = Letter::Role::whole;
    n.outputs[0].push_back(letter);
  }
  return solve(args, n);
}

/// The result has the layout of y, whose dims it has; x follows where it has them too. Without y,
/// as expand.
RuleResult expand_as(const RuleArgs& args) {
  if (args.tensors[1].spec == nullptr) return expand(args);
  Notation n;
  const Dims& in = args.tensors[0].meta.dims;
  const Dims& out = args.outputs[0].dims;
  const std::vector<int> letters = fresh_letters(n, out);
  n.inputs = {{}, letters};
  n.outputs = {letters};
  const int lead = out.rank() - in.rank();
  for (int d = 0; d < in.rank(); ++d)
    n.inputs[0].push_back(in[d] == out[lead + d] ? letters[static_cast<size_t>(lead + d)] : kNoLetter);
  return solve(args, n);
}

/// Sliced dims are not sharded, unless the slice is the whole dim; dims in decrease_axis are
/// dropped.
RuleResult slice(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  n.outputs = {{}};
  std::vector<bool> dropped(static_cast<size_t>(dims.rank()), false);
  for (int64_t axis : args.integers("decrease_axis")) {
    dropped[static_cast<size_t>(normalize_axis(args.op.name, "decrease_axis", axis, dims.rank()))] = true;
  }
  std::vector<bool> cut = dropped;
  for (size_t d = 0; d < dropped.size(); ++d) {
    if (dropped[d]) continue;
    cut[d] = dims[static_cast<int>(d)] != args.outputs[0].dims[static_cast<int>(n.outputs[0].size())];
    n.outputs[0].push_back(n.inputs[0][d]);
  }
  for (size_t d = 0; d < cut.size(); ++d) {
    if (cut[d]) n.letters[d].role = Letter::Role::whole;
  }
  return solve(args, n);
}

/// Dims that are sliced, or traversed backwards, are not sharded.
RuleResult strided_slice(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  for (int64_t axis : args.integers("axes")) {
    n.letters[static_cast<size_t>(normalize_axis(args.op.name, "axes", axis, dims.rank()))].role = Letter::Role::whole;
  }
  n.outputs = n.inputs;
  return solve(args, n);
}

/// Dims that x covers only in part, or that it fills backwards, are not sharded.
RuleResult unslice(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const Dims& out = args.outputs[0].dims;
  const IntArray axes = args.integers("axes"), strides = args.integers("strides");
  n.inputs = {fresh_letters(n, x)};
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = normalize_axis(args.op.name, "an axis of axes", axes[i], x.rank());
    if (x[axis] != out[axis] || strides[i] < 0) n.letters[static_cast<size_t>(axis)].role = Letter::Role::whole;
  }
  n.outputs = n.inputs;
  return solve(args, n);
}

/// The gathered dim of x is not sharded; the dims of index take its place.
RuleResult gather(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int axis = axis_of(args, "axis", x.rank());
  n.inputs = {fresh_letters(n, x), fresh_letters(n, args.tensors[1].meta.dims)};
  n.letters[static_cast<size_t>(axis)].role = Letter::Role::whole;
  n.outputs = {n.inputs[0]};
  auto& out = n.outputs[0];
  out.erase(out.begin() + axis);
  out.insert(out.begin() + axis, n.inputs[1].begin(), n.inputs[1].end());
  // An index with a trailing dim of size 1 may be treated as one-dimensional.
  while (static_cast<int>(out.size()) > args.outputs[0].dims.rank()) out.erase(out.begin() + axis + 1);
  return solve(args, n);
}

/// Rows of the index select in the first dims of x, as many as the size of the index's last dim;
/// x's other dims follow those of the rows.
RuleResult gather_nd(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const Dims& index = args.tensors[1].meta.dims;
  const int64_t chosen = index.rank() == 0 ? -1 : index[index.rank() - 1];
  if (chosen < 0 || chosen > x.rank()) {
    fail(ErrorCode::shape_mismatch,
         "[{}] the index is {}, whose last dim must be the number of leading dims of x to choose in; x is {}",
         args.op.name, to_string(index), to_string(x));
  }
  n.inputs = {fresh_letters(n, x), fresh_letters(n, index)};
  for (int64_t d = 0; d < chosen; ++d) n.letters[static_cast<size_t>(d)].role = Letter::Role::whole;
  n.letters[static_cast<size_t>(n.inputs[1].back())].role = Letter::Role::whole;
  n.outputs = {{n.inputs[1].begin(), n.inputs[1].end() - 1}};
  n.outputs[0].insert(n.outputs[0].end(), n.inputs[0].begin() + chosen, n.inputs[0].end());
  return solve(args, n);
}

/// The slices of x along the axis are added up: where they are sharded, together with the index,
/// the result is a pending sum.
RuleResult index_sum(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const auto axis = static_cast<size_t>(axis_of(args, "axis", x.rank()));
  n.inputs = {fresh_letters(n, x)};
  n.inputs.push_back({n.inputs[0][axis]});
  n.letters[axis].role = Letter::Role::reduce;
  n.outputs = {n.inputs[0]};
  n.outputs[0][axis] = kNoLetter;
  return solve(args, n);
}

/// The op is linear in its other arguments.
bool index_is_not_pending(const RuleArgs& args) {
  const auto index = std::find_if(args.op.inputs.begin(), args.op.inputs.end(),
                                  [](const SlotDef& slot) { return slot.name == "index" || slot.name == "indices"; });
  return !args.tensors[args.slots[static_cast<size_t>(index - args.op.inputs.begin())].first]
              .spec->layout()
              .has_partial();
}

}  // namespace

void register_shape_rules() {
  register_rule("TransposeInferSpmd", "... -> ...{@perm}");
  register_rule("FullLikeInferSpmd", full_like);
  register_rule("ExpandInferSpmd", expand);
  register_rule("ConcatInferSpmd", "[...{!axis}] -> ...{!axis}");
  register_rule("StackInferSpmd", "[...] -> ...{+axis}");
  register_rule("SplitInferSpmd", "...{!axis} -> [...{!axis}]");
  register_rule("SplitWithNumInferSpmd", "...{!axis} -> [...{!axis}]");
  register_rule("UnbindInferSpmd", "...{!axis} -> [...{-axis}]");
  register_rule("TileInferSpmd", tile);
  register_rule("ExpandAsInferSpmd", expand_as);
  register_rule("OneHotInferSpmd", "... -> ... 1");
  register_rule("ScatterInferSpmd", "r ..., 1, 1 ... -> r ...");
  register_rule("TriuInferSpmd", "... -> ...");
  register_rule("SliceInferSpmd", slice);
  register_rule("StridedSliceInferSpmd", strided_slice);
  register_rule("UnsliceInferSpmd", unslice);
  register_rule("GatherInferSpmd", gather);
  register_rule("GatherNdInferSpmd", gather_nd);
  register_rule("IndexSumInferSpmd", index_sum);
  register_guard("IndexIsNotPending", index_is_not_pending);
}

}  // namespace shard::spmd
