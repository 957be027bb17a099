// The state of a thread that calls depend on. Scopes set its fields and restore them; nothing else that a thread has changes what a call does but
// its random numbers (call/dense_call.h, thread_generator).
#pragma once

namespace shard {

class Rank;
class Recorder;
class Writing;
struct DyingStorages;
struct MemoryMeter;
namespace autograd {
class Boundary;
}
namespace call {
class MovedInputs;
}

struct ThreadState {
  Rank* rank = nullptr;  // whose program the thread runs (dist/world.h)
  MemoryMeter* dry =
      nullptr;  // tensors that it makes have no bytes, and this counts them: in a dry world, and while it captures
  Recorder* recorder = nullptr;            // of the program that it captures (program/capture.h)
  const Writing* writing = nullptr;        // the outermost call that writes (core/writing.h)
  bool grad_enabled = true;                // calls are recorded for autograd (autograd/grad_mode.h)
  autograd::Boundary* boundary = nullptr;  // where what is recorded ends: the innermost one (autograd/boundary.h)
  call::MovedInputs* moved_inputs =
      nullptr;                     // collects what distributed calls move: the innermost one (call/moved_inputs.h)
  DyingStorages* dying = nullptr;  // buffers that go after the one that goes now (core/storage.cc)
};

// The library is loaded when a program starts, or has room in what the loader keeps for such variables: no call has to look for it.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local ThreadState this_thread;

}  // namespace shard
