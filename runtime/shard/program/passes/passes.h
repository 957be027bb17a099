// Compiler passes: each returns a shorter or faster program that does the same, bit for bit
// (docs/programs_passes.md).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shard/core/export.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// A pass. Inputs, parameters, outputs and gradients of the result are those of the program: in
/// number, order, type, and in which of them share buffers.
struct Pass {
  std::string_view name;
  std::function<Program(const Program& program)> run;
};

/// Called after each pass, to print what it did.
using PassObserver = std::function<void(std::string_view pass, const Program& before, const Program& after)>;

struct PassOptions {
  std::vector<std::string> skip = {};  // names of passes
  /// Limit for live bytes of buffers. Above it, values are recomputed when they are read
  /// (program/recompute.h). 0: no limit.
  int64_t memory_goal = 0;
  PassObserver observer = {};
  bool verify = true;  // verify the result of each pass
};

/// All passes, in the order in which they run. A pass may run several times.
SHARD_API std::vector<Pass> standard_passes(int64_t memory_goal = 0);

/// Runs the standard passes. Throws invalid_argument for a name in `skip` that no pass has.
SHARD_API Program run_passes(Program program, const PassOptions& options = {});

/// Constant folding: ops whose elements are known when the program is made become `full`, and ops
/// that change nothing are removed.
SHARD_API Program constant_folding(const Program& program);
/// DCE: removes ops whose results are not used, and writes into buffers of the program that nothing
/// reads afterwards. Keeps collectives.
SHARD_API Program dce(const Program& program);
/// DCE that also removes collectives whose results are not used.
SHARD_API Program dce_with_collectives(const Program& program);
/// CSE: ops that compute the same from the same states run once.
SHARD_API Program cse(const Program& program);
/// Reshard hoisting and sinking: swaps a reshard and an elementwise op with one argument if the
/// elements on the other side of the op are smaller.
SHARD_API Program hoist_reshards(const Program& program);
/// Reshards start from the nearest layout in which the same value exists, and a layout that exists
/// already is not computed again.
SHARD_API Program place_reshards(const Program& program);
/// Scheduling for memory: ops run as soon as they can if that frees more bytes of buffers than it
/// takes.
SHARD_API Program schedule(const Program& program);
/// Collective combining: small reshards with equal steps run together, in one collective per step
/// (Op::joins).
SHARD_API Program combine_collectives(const Program& program);
/// In-place writes: elementwise ops write over an argument that is not needed any more.
SHARD_API Program donate_buffers(const Program& program);
/// Loop fusion: an elementwise op with as many elements as the op before joins its loop
/// (Op::joins). The executor fuses them if the local shards are long enough.
SHARD_API Program fuse_loops(const Program& program);

}  // namespace shard::program
