// What a rank tells whoever observes its calls.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shard {

/// A distributed call, or a change of layout outside of one, in text form for people: input layouts -> the
/// reshards needed (steps, bytes) -> output layouts, and aliases.
struct CallRecord {
  std::string op;
  std::string inputs;    // "x [dp, -], w [-, tp]"
  std::string reshards;  // "w: all_gather(tp, dim 1) 64 B"
  std::string outputs;
  std::string aliases;  // "out: view of a copy of x"
  int64_t bytes = 0;    // sent by all ranks together
};

using CallObserver = std::function<void(const CallRecord&)>;

}  // namespace shard
