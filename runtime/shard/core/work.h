// A handle to an asynchronous operation, such as a collective, which is waited for when its result
// is needed.
#pragma once

#include <memory>
#include <utility>

namespace shard {

/// An operation that was started and has to be waited for. Until then its buffers must live, what
/// it reads must not change and what it writes must not be accessed. Used by the thread that
/// started it. The destructor waits.
class [[nodiscard]] Work {
 public:
  /// The operation in flight.
  class State {
   public:
    virtual ~State() = default;
    /// Returns when the operation is complete. Throws if it failed, on each call.
    virtual void wait() = 0;
  };

  /// No operation.
  Work() = default;
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Work(Work&&) = default;
  Work& operator=(Work&& other) noexcept {
    settle();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Work() { settle(); }

  bool pending() const { return state_ != nullptr; }
  /// Returns at once when there is no operation in flight. Throws the failure of the operation, on
  /// every call.
  void wait() {
    if (!state_) return;
    state_->wait();
    state_.reset();
  }

 private:
  /// A failure that no caller waited for is already known to the world, and is reported by the next
  /// collective.
  void settle() noexcept {
    try {
      wait();
    } catch (...) { state_.reset(); }
  }

  std::unique_ptr<State> state_;
};

}  // namespace shard
