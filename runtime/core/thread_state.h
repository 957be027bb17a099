// What calls ask about the thread that makes them, in one place: a call reads it once.
#pragma once

namespace shard {

class Rank;
class Recorder;
class Writing;
struct DyingStorages;
struct MemoryMeter;

struct ThreadState {
  Rank* rank = nullptr;              // whose program the thread runs (dist/world.h)
  MemoryMeter* dry = nullptr;        // tensors that it makes have no bytes, and this counts them: in a dry world, and while it captures
  Recorder* recorder = nullptr;      // of the program that it captures (program/capture.h)
  const Writing* writing = nullptr;  // the outermost call that writes (core/writing.h)
  DyingStorages* dying = nullptr;    // buffers that go after the one that goes now (core/storage.cc)
};

// The library is loaded when a program starts, or has room in what the loader keeps for such variables: no call has to look for it.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local ThreadState this_thread;

}  // namespace shard
