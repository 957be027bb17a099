// Which algorithms kernels take, where libraries have several. A policy of ranks (dist/policies.h), which kernels ask for.
#pragma once

#include <cstdint>

#include "shard/core/thread_state.h"

namespace shard {

enum class AlgorithmPolicy : uint8_t {
  deterministic,  // equal calls have results of equal bits
  // also those that add up in an order that differs from run to run (atomics), or make something else of NaN and infinity
  fastest
};

/// That of the rank whose program this thread runs; deterministic outside of ranks.
inline AlgorithmPolicy algorithm_policy() {
  return this_thread.algorithms == nullptr ? AlgorithmPolicy::deterministic : *this_thread.algorithms;
}

}  // namespace shard
