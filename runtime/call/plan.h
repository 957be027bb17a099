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
  Meta global;
  const DistSpec* spec = nullptr;           // the caller's; null for an absent optional argument
  const DistSpec* want = nullptr;           // what the op computes in
  std::shared_ptr<const ReshardPlan> move;  // null where nothing moves
  int slot = 0;
  bool shape_only = false;  // its elements are not read, so nothing moves
};

struct OutputPlan {
  Meta global;
  const DistSpec* spec = nullptr;
  int alias = -1;  // the flat input that it shares a buffer with
  AliasDef::Kind kind = AliasDef::Kind::view;
  std::shared_ptr<const ReshardPlan> write_back;  // from the layout computed in to that of the written input
  std::shared_ptr<const ReshardPlan>
      adopted;           // ViewPolicy::sync: the other way, where the written input takes the layout computed in
  bool dynamic = false;  // the number of rows comes from data; `global` has the most that it can be
};

/// The part that is equal on all ranks, and below it the pieces of this rank.
struct CallPlan {
  const ProcessMesh* mesh = nullptr;
  const DistSpec* layout = nullptr;  // asked for, by a call without tensor arguments
  std::vector<InputPlan> inputs;     // flat
  std::vector<OutputPlan> outputs;   // flat
  std::vector<SlotRange> output_slots;
  AxisList reduce_axes;
  bool relayout = false;        // input 0 is moved to output 0, and no kernel runs
  bool fallback = false;        // replicated for want of a rule
  bool exchanges_rows = false;  // ranks tell each other how many rows of dynamic outputs they have, and balance them
  int64_t row_count_bytes = 0;
  int64_t kernel_bytes = 0;    // of what kernels combine over reduce_axes
  bool kernel_untold = false;  // kernels combine values, and nothing tells how many bytes that sends
  int64_t bytes = 0;           // sent by all ranks together, write-backs, row counts and kernels included
  bool checked = false;        // policies, counters or targets have to be looked at in each call

  bool active = false;  // this rank is in the mesh
  /// Shards of some 16-bit arguments or outputs are float32 (see shard_dtype): all 16-bit arguments are converted for the kernel, and outputs back.
  bool in_float32 = false;
  std::optional<ReduceType>
      identity;  // made in a pending layout: another rank has the value, this one what leaves it unchanged
  std::vector<Box> input_boxes;
  std::vector<Meta> input_shards;  // in the layouts that are computed in
  std::vector<Box> output_boxes;
  std::vector<Meta> output_shards;
  std::vector<Meta>
      kernel_metas;  // of the outputs as the kernel computes them, with arguments of float32 where in_float32
};

/// One line for people: layouts in -> needed (steps, bytes) -> out, and aliases.
struct CallRecord {
  std::string op;
  std::string inputs;  // "x [dp, -], w [-, tp]"
  std::string moves;   // "w: all_gather(tp, dim 1) 64 B"
  std::string outputs;
  std::string aliases;  // "out: view of x, detached"
  int64_t bytes = 0;
};
/// "out f32[2, 8] of f32[4, 8] [dp, -]"; "no piece" where `piece` is null.
std::string describe_piece(std::string_view name, const Dims* piece, const Meta& global, const DistSpec& spec);
/// "out f32[2, 8] of f32[4, 8] [dp, -]; ...": this rank's pieces of the outputs.
std::string describe_pieces(const OpDef& op, const CallPlan& plan);
/// "the kernel combines values over dp: all_reduce 64 B"
std::string kernel_text(const CallPlan& plan);
CallRecord describe(const OpDef& op, std::string_view name, const CallPlan& plan, ViewPolicy policy);

/// What a call wants to move, for a policy to judge.
struct PlannedMoves {
  std::string text;   // " argument 'x' from [a] to [-] (64 bytes);" for each
  int64_t bytes = 0;  // of all together
  bool more = false;  // and others, which cannot be counted beforehand
};
/// Throws policy, or tells the log sink, where the rank's CommPolicy does not let `op` make these moves.
void check_comm_policy(const Rank& rank, std::string_view op, const ProcessMesh& mesh, const PlannedMoves& moves);

}  // namespace shard::call
