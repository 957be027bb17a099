// Plans a call on a mesh: a function of the op, the types of its arguments, its attributes and the
// policies. Eager calls, dry runs, captured programs and their executor all use it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "shard/call/plan.h"
#include "shard/core/attr.h"
#include "shard/core/export.h"

namespace shard::call {

/// A call without its tensors.
struct CallTypes {
  const OpDef& op;
  const char* name = nullptr;  // name of the called form, for messages: "relu_"
  bool inplace = false;
  const ProcessMesh* mesh = nullptr;
  std::span<const spmd::TensorArg> inputs = {};  // flat; an absent input has no spec
  std::span<const SlotRange> slots = {};
  std::span<const AttrRef> attrs = {};
  const DistSpec* layout = nullptr;    // for an op without tensor arguments: the layout of all its outputs
  std::span<const Meta> outputs = {};  // global metas, flat
  std::span<const SlotRange> output_slots = {};
};

/// Infers the layouts that the op computes in, of its inputs (InputPlan::want) and outputs, and
/// what its kernel reduces over. It plans no reshards. Throws no_rule if the op has no rule and
/// `fallback` does not allow replication, and layout if call.layout does not fit.
SHARD_API CallPlan place_call(const CallTypes& call, FallbackPolicy fallback);

/// The whole plan except this rank's part and the bytes that the kernel sends: place_call, the
/// reshards of inputs, aliases with their write-backs, and the bytes of these. Throws like
/// place_call, and also shape_mismatch, layout or out_of_range for calls that cannot be made.
SHARD_API CallPlan plan_call(const CallTypes& call, const Policies& policies, const World& world);

/// Sets this rank's part of the plan: its boxes and the metas of its local shards. `at` is the
/// rank's coordinate in the mesh, or nullopt for a rank outside it.
SHARD_API void bind_plan(CallPlan& plan, const std::optional<Coordinate>& at);

/// Throws layout: the result cannot be written back into `input`, because values would be lost.
[[noreturn]] SHARD_API void fail_loses(const OpDef& op, const char* name, const InputPlan& input);

/// Throws internal: the op computes another local shard than the layout of the output implies.
[[noreturn]] SHARD_API void fail_shard(const OpDef& op, const OutputPlan& output, const Meta& computed,
                                       const Meta& planned);

/// True if the output slot is a view whose bytes no kernel writes.
SHARD_API bool reinterprets(const OpDef& op, size_t output_slot);

}  // namespace shard::call
