// Rules of the ops of writing.yaml. Each rank writes its own part of x, so all dims of x may be sharded. Values are
// sharded with the dims of x that are written as wholes.
#include <algorithm>

#include "shard/meta/writing.h"
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// Whether each true element of a mask selects on its own: there is one mask, other indices have one element, and the
/// first `lead` dims of value do not distinguish the places.
bool selects_alone(std::span<const Meta> indices, const Dims& value, int lead) {
  const auto is_mask = [](const Meta& index) { return index.dtype == DType::boolean; };
  return std::count_if(indices.begin(), indices.end(), is_mask) == 1 &&
         std::all_of(indices.begin(), indices.end(), [&](const Meta& i) { return is_mask(i) || i.numel() == 1; }) &&
         (lead <= 0 || value.numel(0, lead) == 1);
}

/// Value follows x along the dims in which indices do not select, and a mask that selects alone along those in which it
/// does. Other indices are whole.
RuleResult index_put(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const size_t last = args.tensors.size() - 1;
  const Dims& value = args.tensors[last].meta.dims;
  n.inputs = {fresh_letters(n, x)};
  std::vector<Meta> indices;
  for (size_t i = 1; i < last; ++i) indices.push_back(args.tensors[i].meta);
  const int chosen = meta::selection(args.op.name, x, indices).chosen;
  const bool alone = selects_alone(indices, value, value.rank() - (x.rank() - chosen));
  auto next = n.inputs[0].begin();
  for (const Meta& index : indices) {
    const bool mask = index.dtype == DType::boolean;
    const int count = mask ? index.dims.rank() : 1;
    n.inputs.push_back(mask && alone ? std::vector<int>(next, next + count)
                                     : fresh_letters(n, index.dims, Letter::Role::whole));
    next += count;
  }
  std::vector<int> letters;
  for (int v = 0; v < value.rank(); ++v) {
    const int d = x.rank() - value.rank() + v;
    const bool follows = d >= chosen && value[v] == x[d];
    letters.push_back(follows ? n.inputs[0][static_cast<size_t>(d)] : kNoLetter);
  }
  n.inputs.push_back(letters);
  n.outputs = {n.inputs[0]};
  return solve(args, n);
}

/// Values follow x along the dims that the slice covers.
RuleResult set_value(const RuleArgs& args) {
  Notation n;
  const Dims &x = args.tensors[0].meta.dims, &values = args.tensors[1].meta.dims;
  const meta::WrittenSlice slice =
      meta::written_slice(args.op.name, x, args.integers("starts"), args.integers("ends"), args.integers("steps"),
                          args.integers("axes"), args.integers("decrease_axes"), args.integers("none_axes"));
  n.inputs = {fresh_letters(n, x), {}};
  for (const int d : meta::dims_of_values(args.op.name, slice, values)) {
    const auto at = static_cast<size_t>(d);
    const bool covered = d != meta::kNoDim && slice.ranges[at].count == x[d] && slice.ranges[at].step == 1;
    n.inputs[1].push_back(covered ? n.inputs[0][at] : kNoLetter);
  }
  n.outputs = {n.inputs[0]};
  return solve(args, n);
}

/// y has the dims of x but for those with the diagonal, which is whole.
RuleResult fill_diagonal_tensor(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int rows = normalize_axis(args.op.name, "dim1", args.integer("dim1"), x.rank()),
            columns = normalize_axis(args.op.name, "dim2", args.integer("dim2"), x.rank());
  n.inputs = {fresh_letters(n, x), {}};
  for (int d = 0; d < x.rank(); ++d) {
    if (d != rows && d != columns) n.inputs[1].push_back(n.inputs[0][static_cast<size_t>(d)]);
  }
  n.inputs[1].push_back(kNoLetter);
  n.outputs = {n.inputs[0]};
  return solve(args, n);
}

}  // namespace

void register_writing_rules() {
  register_rule("IndexPutInferSpmd", index_put);
  register_rule("SetValueInferSpmd", set_value);
  register_rule("FillDiagonalTensorInferSpmd", fill_diagonal_tensor);
}

}  // namespace shard::spmd
