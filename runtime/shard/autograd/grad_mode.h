// Whether calls of this thread are recorded for autograd.
#pragma once

#include <utility>

#include "shard/core/thread_state.h"

namespace shard {

/// True by default. Only public functions read it.
inline bool grad_enabled() { return this_thread.grad_enabled; }

/// Switches recording on or off for a scope.
class GradMode {
 public:
  explicit GradMode(bool enabled) : before_(std::exchange(this_thread.grad_enabled, enabled)) {}
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;
  ~GradMode() { this_thread.grad_enabled = before_; }

 private:
  bool before_;
};

/// A scope in which nothing is recorded: results require no gradient, and leaves may be written in place.
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

}  // namespace shard
