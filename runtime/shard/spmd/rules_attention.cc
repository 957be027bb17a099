// Rules of attention and of rotary embeddings. Rules of other layers are in rules_nn.cc.
#include <algorithm>
#include <array>

#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// The number by which heads may be divided: the product of the mesh axes that shard them in any
/// tensor of the call. `inputs` and `outputs` are the head dims of the tensors, -1 for a tensor
/// without heads.
int64_t head_shards(const RuleArgs& args, std::span<const int> inputs, std::span<const int> outputs) {
  int64_t shards = 1;
  for (int axis = 0; axis < args.mesh->rank(); ++axis) {
    const auto on = [&](const DistSpec* spec, int dim) {
      return spec != nullptr && dim >= 0 && spec->layout().dim_of(axis) == dim;
    };
    bool used = false;
    for (size_t t = 0; args.wanted.empty() && t < inputs.size(); ++t)
      used = used || on(args.tensors[t].spec, inputs[t]);
    for (size_t o = 0; o < args.wanted.size(); ++o) used = used || on(args.wanted[o], outputs[o]);
    if (used) shards *= args.mesh->size(axis);
  }
  return shards;
}

/// The letters of attention. Batches, heads and queries are independent; widths are not sharded, nor are keys, unless
/// the kernel knows that it has a part of them (`of_keys`). Where q has more heads than k and v, the three are sharded
/// alike if every shard of k and v goes with whole groups of q. Otherwise k and v are not sharded by heads, and the
/// kernel finds its heads in them. Rows of packed sequences are whole.
struct AttentionLetters {
  AttentionLetters(const RuleArgs& args, Notation& n, std::span<const int> heads_in, std::span<const int> heads_out,
                   Letter::Role of_keys, bool packed = false) {
    const Dims &q_dims = args.tensors[0].meta.dims, &k_dims = args.tensors[1].meta.dims;
    const int rank = q_dims.rank();
    const int64_t q_heads = q_dims[rank - 2], kv_heads = k_dims[rank - 2];
    if (!packed) {
      batch = n.add({Letter::Role::map, ReduceType::sum, q_dims[0]});
      sequence = n.add({Letter::Role::map, ReduceType::sum, q_dims[1]});
      keys = n.add({of_keys, ReduceType::sum, k_dims[1], gathered(args)});
    }
    heads = n.add({Letter::Role::map, ReduceType::sum, q_heads});
    share_heads = q_heads == kv_heads || kv_heads % head_shards(args, heads_in, heads_out) == 0;
    q = {batch, sequence, heads, kNoLetter};
    kv = {batch, keys, share_heads ? heads : kNoLetter, kNoLetter};
    if (rank == 3) {
      q.erase(q.begin());
      kv.erase(kv.begin());
    }
    lse = {batch, heads, sequence};
  }
  /// The letters of a mask, whose dims of size 1 are broadcast; none where it is absent.
  std::vector<int> mask(const RuleArgs& args, const TensorArg& mask) const {
    if (mask.spec == nullptr) return {};
    const Dims &dims = mask.meta.dims, &q_dims = args.tensors[0].meta.dims;
    const int rank = q_dims.rank();
    const int row = sequence != kNoLetter && dims[dims.rank() - 2] == q_dims[rank - 3] ? sequence : kNoLetter;
    if (dims.rank() == 2) return {row, keys};
    return {batch != kNoLetter && dims[0] == q_dims[0] ? batch : kNoLetter,
            dims[1] == q_dims[rank - 2] ? heads : kNoLetter, row, keys};
  }

  /// The bytes that a kernel which combines gathers for each line of k (what one batch, head and column has): the
  /// maximum, the sum and the weighted values of each query.
  static int64_t gathered(const RuleArgs& args) {
    const Dims &q_dims = args.tensors[0].meta.dims, &k_dims = args.tensors[1].meta.dims;
    const int64_t lines = k_dims[0] * k_dims[2] * k_dims[3], numbers = args.tensors[2].meta.dims[3] + 2;
    const int64_t size = args.tensors[0].meta.dtype == DType::float64 ? 8 : 4;
    return lines == 0 ? 0 : (q_dims.numel(0, 3) * numbers * size + lines - 1) / lines;
  }

  int batch = kNoLetter, sequence = kNoLetter, keys = kNoLetter, heads;
  bool share_heads;
  std::vector<int> q, kv, lse;
};

/// A kernel that combines has the maxima, sums and weighted values of each query over its keys.
RuleResult flash_attn(const RuleArgs& args, bool combines) {
  Notation n;
  const AttentionLetters letters(args, n, std::array{2, 2, 2, -1, 1}, std::array{2, 1, 1, -1},
                                 combines ? Letter::Role::combined : Letter::Role::whole);
  n.inputs = {letters.q, letters.kv, letters.kv, {}, letters.mask(args, args.tensors[4])};
  if (args.tensors[3].spec != nullptr) n.inputs[3] = {kNoLetter};
  n.outputs = {letters.q, {kNoLetter}, letters.lse, {kNoLetter}};
  if (args.flag("return_softmax")) n.outputs[1] = {letters.batch, letters.heads, letters.sequence, letters.keys};
  return solve(args, n);
}

/// Queries are summed over in the gradients of k and v, and so are heads where k and v are not sharded with them. So
/// are keys in the gradient of q, where the kernel `knows_keys`: it finds the weights of those that it has from the
/// sums over all.
RuleResult flash_attn_grad(const RuleArgs& args, bool knows_keys) {
  Notation n;
  const AttentionLetters letters(args, n, std::array{2, 2, 2, 2, 1, -1, 1, 2}, std::array{2, 2, 2},
                                 knows_keys ? Letter::Role::reduce : Letter::Role::whole);
  n.letters[static_cast<size_t>(letters.sequence)].role = Letter::Role::reduce;
  if (!letters.share_heads) n.letters[static_cast<size_t>(letters.heads)].role = Letter::Role::reduce;
  n.inputs = {
      letters.q, letters.kv, letters.kv, letters.q, letters.lse, {kNoLetter}, letters.mask(args, args.tensors[6]),
      letters.q};
  n.outputs = {letters.q, letters.kv, letters.kv};
  return solve(args, n);
}

RuleResult flash_attn_unpadded(const RuleArgs& args) {
  Notation n;
  const AttentionLetters letters(args, n, std::array{1, 1, 1, -1, -1, -1, 1}, std::array{1, 1, 1, -1},
                                 Letter::Role::whole, true);
  n.inputs = {letters.q, letters.kv, letters.kv, {kNoLetter}, {kNoLetter}, {}, letters.mask(args, args.tensors[6])};
  if (args.tensors[5].spec != nullptr) n.inputs[5] = {kNoLetter};
  n.outputs = {letters.q, {kNoLetter}, letters.lse, {kNoLetter}};
  if (args.flag("return_softmax")) n.outputs[1] = {kNoLetter, letters.heads, kNoLetter, kNoLetter};
  return solve(args, n);
}

RuleResult flash_attn_unpadded_grad(const RuleArgs& args) {
  Notation n;
  const AttentionLetters letters(args, n, std::array{1, 1, 1, -1, -1, 1, 1, -1, 1, 1}, std::array{1, 1, 1},
                                 Letter::Role::whole, true);
  if (!letters.share_heads) n.letters[static_cast<size_t>(letters.heads)].role = Letter::Role::reduce;
  n.inputs = {letters.q,   letters.kv,  letters.kv,
              {kNoLetter}, {kNoLetter}, letters.q,
              letters.lse, {kNoLetter}, letters.mask(args, args.tensors[8]),
              letters.q};
  n.outputs = {letters.q, letters.kv, letters.kv};
  return solve(args, n);
}

/// The letters of the arguments of memory_efficient_attention, the first eight of its gradient too.
std::vector<std::vector<int>> selected_letters(const RuleArgs& args, const AttentionLetters& letters) {
  std::vector<std::vector<int>> inputs = {letters.q, letters.kv, letters.kv, letters.mask(args, args.tensors[3])};
  for (size_t t = 4; t < 8; ++t) {
    const int each = t < 6 ? kNoLetter : letters.batch;  // lengths and diagonals are those of batches
    inputs.push_back(args.tensors[t].spec == nullptr ? std::vector<int>() : std::vector<int>{each});
  }
  return inputs;
}

RuleResult memory_efficient_attention(const RuleArgs& args, bool combines) {
  Notation n;
  const AttentionLetters letters(args, n, std::array{2, 2, 2, 1, -1, -1, -1, -1}, std::array{2, 1, -1},
                                 combines ? Letter::Role::combined : Letter::Role::whole,
                                 args.tensors[4].spec != nullptr);
  n.inputs = selected_letters(args, letters);
  n.outputs = {letters.q, letters.lse, {kNoLetter}};
  return solve(args, n);
}

/// As flash_attn_grad; the gradient of a bias is summed over what it is broadcast along.
RuleResult memory_efficient_attention_grad(const RuleArgs& args, bool knows_keys) {
  Notation n;
  const AttentionLetters letters(args, n, std::array{2, 2, 2, 1, -1, -1, -1, -1, 2, 1, -1, 2}, std::array{2, 2, 2, 1},
                                 knows_keys ? Letter::Role::reduce : Letter::Role::whole,
                                 args.tensors[4].spec != nullptr);
  n.inputs = selected_letters(args, letters);
  const std::vector<int>& bias = n.inputs[3];
  for (const int letter : {letters.batch, letters.sequence, letters.heads}) {
    if (letter == kNoLetter) continue;
    const auto lacks = [=](const std::vector<int>& tensor) {
      return std::find(tensor.begin(), tensor.end(), letter) == tensor.end();
    };
    if (lacks(letters.kv) || (!bias.empty() && lacks(bias)))
      n.letters[static_cast<size_t>(letter)].role = Letter::Role::reduce;
  }
  n.outputs = {letters.q, letters.kv, letters.kv, bias};
  n.inputs.insert(n.inputs.end(), {letters.q, letters.lse, {kNoLetter}, letters.q});
  return solve(args, n);
}

/// A rotation, forward or backward, of tensors in slots from `first` on, by tables and positions in
/// slots from `tables` on. The kernel knows the positions of its shard, so the sequence may be
/// sharded; tables of sines are sharded with it unless positions are looked up. Heads are
/// independent, so q, k and v share their axes even where they have different numbers of heads.
RuleResult rope(const RuleArgs& args, size_t first, size_t tables) {
  Notation n;
  const int batch = n.add({Letter::Role::map, ReduceType::sum, 0}),
            sequence = n.add({Letter::Role::map, ReduceType::sum, 0});
  const int heads = n.add({Letter::Role::map, ReduceType::sum, args.tensors[first].meta.dims[2]});
  const bool time_major = args.flag("time_major");
  const std::vector<int> rotated = {time_major ? sequence : batch, time_major ? batch : sequence, heads, kNoLetter};
  const int position = args.tensors[tables + 2].spec == nullptr ? sequence : kNoLetter;
  n.inputs.resize(args.tensors.size());
  for (size_t t = 0; t < args.tensors.size(); ++t) {
    if (args.tensors[t].spec == nullptr) continue;
    if (t >= first && t < first + 3) n.inputs[t] = rotated;
    else if (t == tables + 2) n.inputs[t] = {batch, sequence};
    else if (args.tensors[t].meta.dims.rank() == 2) n.inputs[t] = {position, kNoLetter};
    else n.inputs[t] = {kNoLetter, position, kNoLetter, kNoLetter};
  }
  for (size_t o = 0; o < args.outputs.size(); ++o) n.outputs.push_back(n.inputs[first + o]);
  return solve(args, n);
}
RuleResult fused_rope(const RuleArgs& args) { return rope(args, 0, 3); }
RuleResult fused_rope_grad(const RuleArgs& args) { return rope(args, 3, 0); }

/// A rotation is linear in the rotated tensor, but not in tables and positions.
bool makes_angles(const RuleArgs& args, size_t tables) {
  return std::all_of(args.tensors.begin() + static_cast<long>(tables),
                     args.tensors.begin() + static_cast<long>(tables) + 3,
                     [](const TensorArg& table) { return table.spec == nullptr; });
}
bool rope_makes_its_angles(const RuleArgs& args) { return makes_angles(args, 3); }
bool rope_grad_makes_its_angles(const RuleArgs& args) { return makes_angles(args, 0); }

}  // namespace

void register_attention_rules() {
  register_rule("FlashAttInferSpmd", [](const RuleArgs& args) { return flash_attn(args, false); });
  register_rule("FlashAttGradInferSpmd", [](const RuleArgs& args) { return flash_attn_grad(args, false); });
  register_rule("CombinedFlashAttInferSpmd", [](const RuleArgs& args) { return flash_attn(args, true); });
  register_rule("CombinedFlashAttGradInferSpmd", [](const RuleArgs& args) { return flash_attn_grad(args, true); });
  register_rule("FlashAttnUnpaddedInferSpmd", flash_attn_unpadded);
  register_rule("FlashAttnUnpaddedGradInferSpmd", flash_attn_unpadded_grad);
  register_rule("MemoryEfficientAttentionInferSpmd",
                [](const RuleArgs& args) { return memory_efficient_attention(args, false); });
  register_rule("MemoryEfficientAttentionGradInferSpmd",
                [](const RuleArgs& args) { return memory_efficient_attention_grad(args, false); });
  register_rule("CombinedMemoryEfficientAttentionInferSpmd",
                [](const RuleArgs& args) { return memory_efficient_attention(args, true); });
  register_rule("CombinedMemoryEfficientAttentionGradInferSpmd",
                [](const RuleArgs& args) { return memory_efficient_attention_grad(args, true); });
  register_rule("FusedRopeInferSpmd", fused_rope);
  register_rule("FusedRopeGradInferSpmd", fused_rope_grad);
  register_guard("RopeMakesItsAngles", rope_makes_its_angles);
  register_guard("RopeGradMakesItsAngles", rope_grad_makes_its_angles);
}

}  // namespace shard::spmd
