// What a thread does around its waits for other ranks and for devices: hooks for programs in which a waiting thread must not hold a lock, such
// as Python, and a look at ranks on which the work of a device depends.
#pragma once

#include "shard/core/export.h"

namespace shard {

struct WaitHooks {
  /// Called when a thread begins to wait, which may be in the destructor of a tensor. Its result is passed to `end`. Must not throw.
  void* (*begin)() = nullptr;
  void (*end)(void* state) = nullptr;
  /// Called between the two, about ten times a second, by a rank that polls its transport (MPI) or waits for its devices there. What it throws ends the wait and
  /// fails the world.
  void (*poll)() = nullptr;
};

/// Sets the hooks of the process, all of them. They must be set before worlds run, and are never removed.
SHARD_API void set_wait_hooks(const WaitHooks& hooks);
/// The hooks that are set; null members before that.
SHARD_API const WaitHooks& wait_hooks();

/// Calls the hooks around a wait.
class WaitScope {
 public:
  WaitScope() : state_(wait_hooks().begin != nullptr ? wait_hooks().begin() : nullptr) {}
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  ~WaitScope() {
    if (wait_hooks().end != nullptr) wait_hooks().end(state_);
  }

 private:
  void* state_;
};

/// Looks at what the work of a thread's devices may depend on, such as other ranks, while the thread waits for it.
class DeviceWatch {
 public:
  virtual ~DeviceWatch() = default;
  /// Called again and again during a wait, and once after it. Throws where the work will not end, or has not ended well: the wait is
  /// given up, and later ones throw as well.
  virtual void check() = 0;
  /// Called during a wait for all work of a thread: it may call hooks, which may use devices. Throws to give the wait up.
  virtual void poll() = 0;
};
/// That of this thread; null where its devices work for themselves alone.
SHARD_API DeviceWatch*& device_watch();

/// Between two looks at what a wait is for: gives the processor to other threads, and sleeps for 0.1 ms after the first thousand `turn`s.
SHARD_API void pause_wait(int turn);

}  // namespace shard
