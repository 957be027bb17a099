// Rules of attention and of what prepares its arguments. Other layers stand in rules_nn.cc.
#include "spmd/builtin_rules.h"
#include "spmd/notation.h"

namespace shard::spmd {
namespace {

/// By how much the heads may be divided: the product of the mesh axes that shard them somewhere in the call.
int64_t head_shards(const RuleArgs& args) {
  int64_t shards = 1;
  for (int axis = 0; axis < args.mesh->rank(); ++axis) {
    const auto on = [&](const DistSpec* spec, int dim) { return spec != nullptr && spec->layout().dim_of(axis) == dim; };
    bool used = false;
    for (size_t t = 0; args.wanted.empty() && t < 3; ++t) used = used || on(args.tensors[t].spec, 2);
    if (args.wanted.empty()) used = used || on(args.tensors[4].spec, 1);
    for (size_t o = 0; o < args.wanted.size(); ++o) used = used || on(args.wanted[o], o == 0 ? 2 : 1);
    if (used) shards *= args.mesh->size(axis);
  }
  return shards;
}

/// Batches, heads and queries are on their own; keys and widths stay whole. Where q has more heads than k and v, the three are cut
/// alike if every piece of k and v goes with whole groups of q, else k and v stay whole and the kernel finds its heads in them.
RuleResult flash_attn(const RuleArgs& args) {
  Notation n;
  const Dims &q = args.tensors[0].meta.dims, &k = args.tensors[1].meta.dims;
  const int batch = n.add({Letter::Role::map, ReduceType::sum, q[0]}), sequence = n.add({Letter::Role::map, ReduceType::sum, q[1]});
  const int heads = n.add({Letter::Role::map, ReduceType::sum, q[2]});
  const bool together = q[2] == k[2] || k[2] % head_shards(args) == 0;
  const std::vector<int> kv = {batch, kNoLetter, together ? heads : kNoLetter, kNoLetter};
  n.inputs = {{batch, sequence, heads, kNoLetter}, kv, kv, {}, {}};
  if (args.tensors[3].spec != nullptr) n.inputs[3] = {kNoLetter};
  if (args.tensors[4].spec != nullptr) {
    const Dims& mask = args.tensors[4].meta.dims;
    n.inputs[4] = {mask[0] == q[0] ? batch : kNoLetter, mask[1] == q[2] ? heads : kNoLetter, mask[2] == q[1] ? sequence : kNoLetter, kNoLetter};
  }
  n.outputs = {n.inputs[0], {kNoLetter}, {batch, heads, sequence}, {kNoLetter}};
  if (args.flag("return_softmax")) n.outputs[1] = {batch, heads, sequence, kNoLetter};
  return solve(args, n);
}

/// The kernel knows the positions of its piece, so the sequence may be cut; tables of sines go with it unless positions are looked up.
/// Heads are on their own, so q, k and v share their axes even where they have different numbers of them.
RuleResult fused_rope(const RuleArgs& args) {
  Notation n;
  const Dims& q = args.tensors[0].meta.dims;
  const int batch = n.add({Letter::Role::map, ReduceType::sum, 0}), sequence = n.add({Letter::Role::map, ReduceType::sum, 0});
  const int heads = n.add({Letter::Role::map, ReduceType::sum, q[2]});
  const bool time_major = args.flag("time_major");
  const std::vector<int> rotated = {time_major ? sequence : batch, time_major ? batch : sequence, heads, kNoLetter};
  const int position = args.tensors[5].spec == nullptr ? sequence : kNoLetter;
  n.inputs.resize(args.tensors.size());
  for (size_t t = 0; t < args.tensors.size(); ++t) {
    if (args.tensors[t].spec == nullptr) continue;
    if (t < 3) n.inputs[t] = rotated;
    else if (t == 5) n.inputs[t] = {batch, sequence};
    else if (args.tensors[t].meta.dims.rank() == 2) n.inputs[t] = {position, kNoLetter};
    else n.inputs[t] = {kNoLetter, position, kNoLetter, kNoLetter};
  }
  for (size_t o = 0; o < args.outputs.size(); ++o) n.outputs.push_back(n.inputs[o]);
  return solve(args, n);
}

/// A rotation is linear in what it turns, but not in tables and positions.
bool rope_makes_its_angles(const RuleArgs& args) {
  return args.tensors[3].spec == nullptr && args.tensors[4].spec == nullptr && args.tensors[5].spec == nullptr;
}

}  // namespace

void register_attention_rules() {
  register_rule("FlashAttInferSpmd", flash_attn);
  register_rule("FusedRopeInferSpmd", fused_rope);
  register_guard("RopeMakesItsAngles", rope_makes_its_angles);
}

}  // namespace shard::spmd
