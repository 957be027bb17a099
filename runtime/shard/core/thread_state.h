// The state of a thread on which calls depend. Scopes set its fields and restore them. The only
// other thread state that affects a call is its random numbers (call/dense_call.h,
// thread_generator).
#pragma once

#include <cstdint>

#include "shard/core/export.h"
#include "shard/core/small_blocks.h"

namespace shard {

enum class AlgorithmPolicy : uint8_t;
struct Device;
class Launcher;
class Rank;
class Tracer;
class Writing;
struct DyingStorages;
namespace autograd {
class Boundary;
}
namespace call {
class ReshardedInputs;
}

struct ThreadState {
  Rank* rank = nullptr;              // the rank whose program the thread runs (dist/world.h)
  const Device* device = nullptr;    // the default of the innermost DefaultDevice (core/device.h)
  Launcher* launcher = nullptr;      // of the calls of the thread: in a dry world, and during a capture
  Tracer* tracer = nullptr;          // of the program that the thread captures (program/capture/program_tracer.h)
  const Writing* writing = nullptr;  // the outermost call that writes (core/writing.h)
  bool grad_enabled = true;          // calls are recorded for autograd (autograd/grad_mode.h)
  // where recorded histories end: the innermost one (autograd/boundary.h)
  autograd::Boundary* boundary = nullptr;
  // collects the inputs that distributed calls reshard: the innermost one (call/resharded_inputs.h)
  call::ReshardedInputs* resharded_inputs = nullptr;
  DyingStorages* dying = nullptr;               // buffers that are destroyed after the current one (core/storage.cc)
  SmallBlocks blocks;                           // freed memory for the next small objects (core/small_blocks.cc)
  const AlgorithmPolicy* algorithms = nullptr;  // the policy of the rank (core/algorithm_policy.h)
};

// The library is loaded at program start, or fits into the space that the loader reserves for such
// variables, so calls access it without a lookup.
[[gnu::tls_model("initial-exec")]] SHARD_API extern constinit thread_local ThreadState this_thread;

}  // namespace shard
