// A handle to something that is under way, such as a collective: waited for when its result is needed.
#pragma once

#include <memory>
#include <utility>

namespace shard {

/// Something that was started and has to be waited for. Until then its buffers must live, what it reads must not change and what it
/// writes must not be touched. Used by the thread that started it. A handle that dies waits first.
class [[nodiscard]] Work {
 public:
  /// What is under way.
  class State {
   public:
    virtual ~State() = default;
    /// Returns when it is done; throws when it failed, each time it is asked.
    virtual void wait() = 0;
  };

  /// Nothing is under way.
  Work() = default;
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Work(Work&&) = default;
  Work& operator=(Work&& other) {
    settle();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Work() { settle(); }

  bool pending() const { return state_ != nullptr; }
  /// Returns at once when nothing is under way (any more). Throws what the work failed with, again on every call.
  void wait() {
    if (!state_) return;
    state_->wait();
    state_.reset();
  }

 private:
  /// A failure that nobody asked for is known to the world already, and shows at the next collective.
  void settle() noexcept {
    try {
      wait();
    } catch (...) { state_.reset(); }
  }

  std::unique_ptr<State> state_;
};

}  // namespace shard
