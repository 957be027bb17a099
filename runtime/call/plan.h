// What one distributed call will do, as a value: computed once, cached, executed, inspected by policies and printed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/op_def.h"
#include "dist/world.h"
#include "reshard/plan.h"
#include "spmd/rule.h"

namespace shard::call {

struct InputPlan {
  const DistSpec* spec = nullptr;  // the caller's; null for an absent optional argument
  const DistSpec* want = nullptr;  // what the op computes in
  std::shared_ptr<const ReshardPlan> move;  // null where nothing moves
  int slot = 0;
};

struct OutputPlan {
  Meta global;
  const DistSpec* spec = nullptr;
  int alias = -1;  // the flat input that it shares a buffer with
  AliasDef::Kind kind = AliasDef::Kind::view;
  std::shared_ptr<const ReshardPlan> write_back;  // from the layout computed in to that of the written input
};

/// The part that is equal on all ranks, and below it the pieces of this rank.
struct CallPlan {
  const ProcessMesh* mesh = nullptr;
  std::vector<InputPlan> inputs;    // flat
  std::vector<OutputPlan> outputs;  // flat
  std::vector<spmd::SlotRange> output_slots;
  AxisList reduce_axes;
  bool relayout = false;    // input 0 is moved to output 0, and no kernel runs
  bool fallback = false;    // replicated for want of a rule
  int64_t bytes = 0;        // sent by all ranks together, write-backs included

  bool active = false;  // this rank is in the mesh
  std::optional<ReduceType> identity;  // made in a pending layout: another rank has the value, this one what leaves it unchanged
  std::vector<Box> input_boxes;
  std::vector<Box> output_boxes;
  std::vector<Dims> output_dims;  // local
};

/// One line for people: layouts in -> needed (steps, bytes) -> out, and aliases.
struct CallRecord {
  std::string op;
  std::string inputs;   // "x [dp, -], w [-, tp]"
  std::string moves;    // "w: all_gather(tp, dim 1) 64 B"
  std::string outputs;
  std::string aliases;  // "out: view of x, detached"
  int64_t bytes = 0;
};
CallRecord describe(const OpDef& op, std::string_view name, const CallPlan& plan, ViewPolicy policy);

}  // namespace shard::call
