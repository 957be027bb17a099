#include "shard/program/passes/passes.h"

#include <fmt/format.h>

#include <algorithm>

#include "shard/core/error.h"
#include "shard/program/passes/rematerialize.h"

namespace shard::program {

std::vector<Pass> standard_passes(int64_t memory_goal) {
  const auto fit_memory = [memory_goal](const Program& program) {
    return memory_goal == 0 ? program : rematerialize(program, memory_goal);
  };
  // DCE runs before passes that count uses. CSE must not undo recomputation, so it runs before
  // that. Writing in place creates states that would hide equal ops, so it runs late.
  return {{"constant_folding", &constant_folding},
          {"cse", &cse},
          {"dce", &dce},
          {"hoist_reshards", &hoist_reshards},
          {"place_reshards", &place_reshards},
          {"dce", &dce},
          {"schedule", &schedule},
          {"rematerialize", fit_memory},
          {"dce", &dce},
          {"combine_collectives", &combine_collectives},
          {"donate_buffers", &donate_buffers},
          {"fuse_loops", &fuse_loops}};
}

Program run_passes(Program program, const PassOptions& options) {
  const std::vector<Pass> passes = standard_passes(options.memory_goal);
  for (const std::string& name : options.skip) {
    if (std::any_of(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == name; })) continue;
    std::string names;
    for (const Pass& pass : passes) {
      if (names.find(pass.name) == std::string::npos)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", pass.name);
    }
    fail(ErrorCode::invalid_argument, "unknown pass '{}' to skip; the passes are {}", name, names);
  }
  for (const Pass& pass : passes) {
    if (std::find(options.skip.begin(), options.skip.end(), pass.name) != options.skip.end()) continue;
    Program after = pass.run(program);
    if (options.observer) options.observer(pass.name, program, after);
    if (options.verify) after.verify();
    program = std::move(after);
  }
  return program;
}

}  // namespace shard::program
