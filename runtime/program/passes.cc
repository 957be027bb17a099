#include "program/passes.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace shard::program {

std::span<const Pass> standard_passes() {
  // Dead code goes before passes that count uses. The last one makes states that would hide equal ops from others.
  static constexpr Pass passes[] = {
      {"constants", &fold_constants},   {"common", &share_common},    {"dead_code", &remove_dead_code}, {"reshards", &place_reshards},
      {"dead_code", &remove_dead_code}, {"batches", &batch_reshards}, {"inplace", &write_in_place},
  };
  return passes;
}

Program run_passes(Program program, const PassOptions& options) {
  const std::span<const Pass> passes = standard_passes();
  for (const std::string& name : options.skip) {
    if (std::any_of(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == name; })) continue;
    std::string names;
    for (const Pass& pass : passes) {
      if (names.find(pass.name) == std::string::npos) names += fmt::format("{}{}", names.empty() ? "" : ", ", pass.name);
    }
    fail(ErrorCode::invalid_argument, "there is no pass '{}' to skip; there are {}", name, names);
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
