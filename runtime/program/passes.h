// Passes: programs become shorter or faster ones that do the same, bit for bit (docs/programs_passes.md).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace shard::program {

/// Inputs, parameters, outputs and gradients of the result are those of the program, in number, order, type and in which of them share buffers.
struct Pass {
  std::string_view name;
  std::function<Program(const Program& program)> run;
};

/// Called after each pass, to print what it did.
using PassObserver = std::function<void(std::string_view pass, const Program& before, const Program& after)>;

struct PassOptions {
  std::vector<std::string> skip = {};  // names of passes
  /// Bytes of buffers that may be live at one time; where they are more, values are made again when they are read (program/recompute.h). 0: any.
  int64_t memory_goal = 0;
  PassObserver observer = {};
  bool verify = true;  // the result of each pass
};

/// All passes, in the order in which they run. One may run several times.
std::vector<Pass> standard_passes(int64_t memory_goal = 0);

/// Runs the standard passes. Throws invalid_argument for a name in `skip` that no pass has.
Program run_passes(Program program, const PassOptions& options = {});

/// Ops whose elements are known when the program is made: they become `full`, and ops that change nothing vanish.
Program fold_constants(const Program& program);
/// Drops what nobody sees: ops whose results are not used, and writes into buffers of the program that nobody reads afterwards. Keeps collectives.
Program remove_dead_code(const Program& program);
/// Drops collectives that nobody sees, too.
Program remove_unused(const Program& program);
/// Ops that compute the same from the same states are done once.
Program share_common(const Program& program);
/// A move and an elementwise op of one argument change places where the elements are smaller on the other side of the op.
Program hoist_reshards(const Program& program);
/// Moves start from the layout of the same value that is nearest, and what is there already is not moved again.
Program place_reshards(const Program& program);
/// Ops run as soon as they can where that frees more bytes of buffers than it takes.
Program order_for_memory(const Program& program);
/// Small moves with equal steps run together, in one collective per step (Op::joins).
Program batch_reshards(const Program& program);
/// Elementwise ops write over an argument that nobody needs any more.
Program write_in_place(const Program& program);
/// Elementwise ops with as many elements as the one before run in one loop with it (Op::joins), where executors find the pieces long enough.
Program join_elementwise(const Program& program);

}  // namespace shard::program
