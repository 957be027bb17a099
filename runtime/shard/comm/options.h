// Options of transports.
#pragma once

#include <chrono>
#include <cstdint>

namespace shard {

struct CommOptions {
  std::chrono::milliseconds timeout{30000};  // of one collective
  /// Before each collective the members exchange what they are about to do, so that divergence is
  /// reported at once. The local transport always compares. The environment variable
  /// SHARD_DEBUG_COMM=1 also enables it.
  bool debug = false;
  int64_t message_limit = int64_t{1} << 30;  // bytes; MPI: larger messages are split, below 2^31
};

}  // namespace shard
