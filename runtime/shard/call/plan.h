// The plan of a distributed call, as a value. It is computed once, cached, executed, inspected by
// policies and printed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/op_def.h"
#include "shard/dist/call_record.h"
#include "shard/dist/world.h"
#include "shard/reshard/plan.h"
#include "shard/spmd/rule.h"

namespace shard::call {

struct InputPlan {
  Meta global;
  const DistSpec* spec = nullptr;           // the caller's layout; null for an absent optional argument
  const DistSpec* want = nullptr;           // the layout that the op computes in
  std::shared_ptr<const ReshardPlan> move;  // the reshard from `spec` to `want`; null where none is needed
  int slot = 0;
  bool shape_only = false;  // the op does not read its elements, so nothing is resharded
};

struct OutputPlan {
  Meta global;
  const DistSpec* spec = nullptr;
  int alias = -1;  // the flat input whose buffer it shares
  AliasDef::Kind kind = AliasDef::Kind::view;
  // The reshard from the layout that the op computes in to that of the written input.
  std::shared_ptr<const ReshardPlan> write_back;
  // The opposite direction, for ViewPolicy::sync when the written input takes the layout that the
  // op computes in.
  std::shared_ptr<const ReshardPlan> adopted;
  bool written = false;  // the kernel writes the buffer of `alias`; a change of metadata alone is not a write
  bool dynamic = false;  // the number of rows comes from data, and `global` has the upper bound
};

/// The plan of one distributed call. The members up to `checked` are equal on all ranks; those
/// below describe this rank's local shards.
struct CallPlan {
  const ProcessMesh* mesh = nullptr;
  const DistSpec* layout = nullptr;  // the requested layout, for a call without tensor arguments
  std::vector<InputPlan> inputs;     // flat
  std::vector<OutputPlan> outputs;   // flat
  std::vector<SlotRange> output_slots;
  AxisList reduce_axes;
  bool relayout = false;  // input 0 is resharded to output 0, and no kernel runs
  bool fallback = false;  // inputs and outputs are replicated because the op has no rule
  // The ranks exchange how many rows of dynamic outputs they have, and rebalance the rows.
  bool exchanges_rows = false;
  bool fetches = false;  // the kernel fetches elements of arguments over reduce_axes
  int64_t row_count_bytes = 0;
  int64_t kernel_bytes = 0;           // sent by kernels that combine or fetch values over reduce_axes
  bool kernel_bytes_unknown = false;  // kernels do that, but how many bytes it sends is unknown
  int64_t bytes = 0;                  // sent by all ranks together, including write-backs, row counts and kernels
  bool checked = false;               // policies, counters or targets have to be checked in each call

  bool active = false;  // this rank is in the mesh
  /// The next call compares the local shapes that the rule promises with those that the op infers.
  mutable bool checks_rule = false;
  /// Shards of some 16-bit arguments or outputs are float32 (see shard_dtype). All 16-bit arguments
  /// are converted for the kernel, and the outputs are converted back.
  bool in_float32 = false;
  // Set for a tensor created in a pending layout where another rank has the value: this rank
  // contributes the identity of this reduction.
  std::optional<ReduceType> identity;
  std::vector<Box> input_boxes;
  std::vector<Meta> input_shards;  // in the layouts that the op computes in
  std::vector<Box> output_boxes;
  std::vector<Meta> output_shards;
  // Metas of the outputs as the kernel computes them; from float32 arguments if in_float32.
  std::vector<Meta> kernel_metas;
};

/// "out f32[2, 8] of f32[4, 8] [dp, -]", or "no shard" if `shard` is null.
SHARD_API std::string describe_shard(std::string_view name, const Dims* shard, const Meta& global,
                                     const DistSpec& spec);
/// This rank's local shards of the outputs: "out f32[2, 8] of f32[4, 8] [dp, -]; ...".
SHARD_API std::string describe_shards(const OpDef& op, const CallPlan& plan);
/// What the kernel sends: "the kernel combines values over dp: all_reduce 64 B".
SHARD_API std::string kernel_text(const CallPlan& plan);
SHARD_API CallRecord describe(const OpDef& op, std::string_view name, const CallPlan& plan, ViewPolicy policy);

/// The communication that a call plans, for a policy to judge.
struct PlannedTraffic {
  std::string text;   // " argument 'x' from [a] to [-] (64 bytes);" for each reshard
  int64_t bytes = 0;  // of all reshards together
  bool more = false;  // there is more communication, whose bytes are not known beforehand
};
/// Throws policy, or writes to the log sink, if the rank's CommPolicy does not allow `op` this
/// communication.
SHARD_API void check_comm_policy(const Rank& rank, std::string_view op, const ProcessMesh& mesh,
                                 const PlannedTraffic& moves);

}  // namespace shard::call
