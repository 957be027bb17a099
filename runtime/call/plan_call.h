// How a call on a mesh is planned: a function of the op, the types of its arguments, its attributes and the policies. Eager calls, dry runs,
// captured programs and their executor all plan with it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "call/plan.h"
#include "core/attr.h"

namespace shard::call {

/// A call without its tensors.
struct CallTypes {
  const OpDef& op;
  const char* name = nullptr;  // of the form that is called, for messages: "relu_"
  bool inplace = false;
  const ProcessMesh* mesh = nullptr;
  std::span<const spmd::TensorArg> inputs = {};  // flat; an absent one has no spec
  std::span<const SlotRange> slots = {};
  std::span<const AttrRef> attrs = {};
  const DistSpec* layout = nullptr;    // of an op without tensor arguments: that of all its outputs
  std::span<const Meta> outputs = {};  // of the whole tensors, flat
  std::span<const SlotRange> output_slots = {};
};

/// The layouts that the op computes in: of its inputs (InputPlan::want) and outputs, and what its kernel reduces over. Nothing is planned to move.
/// Throws no_rule where the op has no rule and `fallback` does not allow to replicate, and layout where call.layout does not fit.
CallPlan place_call(const CallTypes& call, FallbackPolicy fallback);

/// The whole plan but for this rank's part, and for what the kernel sends: place_call, the reshards of inputs, aliases with their write-backs, and
/// the bytes of these. Throws as place_call, and shape_mismatch, layout or out_of_range for calls that cannot be made.
CallPlan plan_call(const CallTypes& call, const Policies& policies, const World& world);

/// Sets the part of the rank at this place of the mesh (none: outside of it): its boxes and the metas of its local shards.
void bind_plan(CallPlan& plan, const std::optional<Coordinate>& at);

/// Throws layout: the result cannot be written back into `input`, since values would be lost.
[[noreturn]] void fail_loses(const OpDef& op, const char* name, const InputPlan& input);

/// True when the output slot is a view whose bytes no kernel writes.
bool reinterprets(const OpDef& op, size_t output_slot);

}  // namespace shard::call
