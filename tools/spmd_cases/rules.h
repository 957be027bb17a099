// The rules that cases name: how the arguments of a case become a call of one of this library's
// rules, under the names of the peer's registry and of its op YAML. The table is in rules.cc,
// shapes of outputs are in shapes.cc, and rules that only cases need are in own_rules.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "first_come.h"
#include "shard/core/op_def.h"
#include "shard/spmd/rule.h"

namespace spmd_cases {

struct AttrDef {
  enum class Kind { any, boolean, integer, number, integers };
  std::string_view name;
  Kind kind = Kind::any;
  nlohmann::json fallback;  // null: the case must have a value
};

struct OutputDef {
  shard::SlotDef slot;
  std::string_view like;  // the input that has its shape; empty: determined by the entry's shapes
};

/// "x, y?, z[], bool flag=false, any rest, ... -> out=x, list[]": tensors, optional ones and lists;
/// attributes with their kinds; after "..." any further attributes, which the rule does not use;
/// outputs with the input that has their shape.
struct Signature {
  explicit Signature(std::string_view text);

  std::string_view text;
  std::vector<shard::SlotDef> inputs;
  std::vector<AttrDef> attrs;
  std::vector<std::string_view> attr_names;
  bool more_attrs = false;
  std::vector<OutputDef> outputs;
  std::vector<shard::SlotDef> output_slots;
};

/// The arguments of a call, bound to a signature.
struct Call {
  const Signature& signature;
  bool backward = false;
  bool compat = false;
  std::vector<shard::spmd::TensorArg> tensors = {};  // flat
  std::vector<shard::SlotRange> slots = {};
  std::vector<shard::spmd::AttrValue> attrs = {};
  /// In a backward call: the shapes of the flat outputs from the case, with sizes 0 and -1 of a
  /// reshape resolved.
  std::vector<shard::Dims> given = {};

  const shard::Dims& dims(size_t slot) const { return tensors[slots[slot].first].meta.dims; }
  bool present(size_t slot) const { return tensors[slots[slot].first].spec != nullptr; }
  const shard::spmd::AttrValue& attr(std::string_view name) const;
  int64_t integer(std::string_view name) const { return std::get<int64_t>(attr(name)); }
  bool flag(std::string_view name) const { return std::get<bool>(attr(name)); }
  const shard::IntArray& integers(std::string_view name) const { return std::get<shard::IntArray>(attr(name)); }
};

/// The shapes of all outputs, a list per output slot. The function throws shard::Error if the
/// arguments do not fit the op.
using Shapes = std::vector<std::vector<shard::Dims>>;
using ShapesOf = Shapes (*)(const Call&);
/// Throws shard::Error for calls that the peer refuses.
using Check = void (*)(const Call&);

struct Entry {
  std::string_view names;  // separated by spaces
  std::string_view signature;
  // An expression, or a registered rule. Empty: the rule of the op with the first of the names.
  std::string_view rule = {};
  ShapesOf shapes = nullptr;
  PeerOptions peer = {};                                              // if its rule differs from the peer's standard
  PeerOptions::Conflict peer_reverse = PeerOptions::Conflict::first;  // the same, for a backward case
  // Set if the peer's rule is not this library's rule with the peer's solver.
  std::string_view peer_rule = {};
  Check peer_check = nullptr;
  bool flat = false;           // the tensors of lists count as separate arguments or outputs
  bool outputs_given = false;  // a forward case lists the outputs too
  // The outputs of a backward case may have other shapes than those that the op infers.
  bool free_outputs = false;
  // The peer's op has a last output, xshape, which only the gradient uses. Its dims are one that no
  // axis shards, followed by those of x.
  bool xshape = false;
  // 0 and -1 in the output shapes of a backward case have the meaning that they have in reshape.
  bool open_sizes = false;
  std::vector<size_t> answers = {};  // the input slots for which the peer's rule returns layouts; empty: all
};

/// All entries for a name, in the order in which they are tried. Entries with the same name have
/// different arguments.
std::vector<const Entry*> find_entries(std::string_view name);
/// The definition of the op of that name in this library, or null; in ops.cc.
const shard::OpDef* find_op(std::string_view name);
/// Every name that has an entry, sorted.
std::vector<std::string> rule_names();

void register_own_rules();  // own_rules.cc

// shapes.cc
Shapes broadcast_shapes(const Call& call);
Shapes swiglu_shapes(const Call& call);
Shapes matmul_shapes(const Call& call);
Shapes reduction_shapes(const Call& call);
Shapes argmax_shapes(const Call& call);
Shapes cumsum_shapes(const Call& call);
Shapes cross_entropy_shapes(const Call& call);
Shapes layer_norm_shapes(const Call& call);
Shapes rms_norm_shapes(const Call& call);
Shapes embedding_shapes(const Call& call);
Shapes gather_shapes(const Call& call);
Shapes gather_nd_shapes(const Call& call);
Shapes one_hot_shapes(const Call& call);
Shapes tile_shapes(const Call& call);
Shapes expand_as_shapes(const Call& call);
Shapes transpose_shapes(const Call& call);
Shapes transpose_grad_shapes(const Call& call);
Shapes reshape_shapes(const Call& call);
Shapes flatten_shapes(const Call& call);
Shapes squeeze_shapes(const Call& call);
Shapes unsqueeze_shapes(const Call& call);
Shapes reshape_grad_shapes(const Call& call);
Shapes strided_slice_shapes(const Call& call);
Shapes slice_shapes(const Call& call);
Shapes split_shapes(const Call& call);
Shapes concat_shapes(const Call& call);
Shapes concat_grad_shapes(const Call& call);
Shapes stack_shapes(const Call& call);
Shapes stack_grad_shapes(const Call& call);
Shapes unbind_shapes(const Call& call);
Shapes flash_attention_shapes(const Call& call);
Shapes rope_grad_shapes(const Call& call);
Shapes linear_grad_shapes(const Call& call);
Shapes scatter_grad_shapes(const Call& call);
Shapes scalar_shapes(const Call& call);
Shapes given_shapes(const Call& call);

// Checks in own_rules.cc: they throw for calls that the peer refuses.
void check_matmul(const Call& call);
void check_cross_entropy(const Call& call);
void check_embedding(const Call& call);
void check_swiglu(const Call& call);
void check_where(const Call& call);
void check_last_two(const Call& call);
void check_normalized_scale(const Call& call);

}  // namespace spmd_cases
