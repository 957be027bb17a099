// Whether calls of this thread are recorded for autograd.
#pragma once

namespace shard {

/// True by default. Thread-local, and read by public functions only.
bool grad_enabled();

/// Switches recording on or off for a scope.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;
  ~GradMode();

 private:
  bool before_;
};

/// A scope in which nothing is recorded: results require no gradient, and leaves may be written in place.
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

}  // namespace shard
