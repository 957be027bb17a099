// Hooks around the waits of a thread for other ranks, for programs in which a waiting thread must not hold a lock, such as Python.
#pragma once

#include "shard/core/export.h"

namespace shard {

struct WaitHooks {
  /// Called when a thread begins to wait, which may be in the destructor of a tensor. Its result is passed to `end`. Must not throw.
  void* (*begin)() = nullptr;
  void (*end)(void* state) = nullptr;
  /// Called between the two, about ten times a second, by a rank that polls its transport (MPI). What it throws ends the wait and
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

}  // namespace shard
