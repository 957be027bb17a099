// Who writes a buffer: what a call that writes tells the storages of its arguments.
#pragma once

#include <array>

#include "core/tensor.h"
#include "core/thread_state.h"

namespace shard {

/// While one lives, what this thread writes is written by a call at `site` with these arguments. Calls may lie in each other, as in ops that
/// are made of others; that of the program counts.
class Writing {
 public:
  /// `targets` are tensors and lists of them. Those beyond the room that there is are not told apart from other buffers.
  template <class... Targets>
  explicit Writing(CallSite site, const Targets&... targets) : outermost_(current() == nullptr), site_(site) {
    if (!outermost_) return;
    (add(targets), ...);
    this_thread.writing = this;
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
  ~Writing() {
    if (outermost_) this_thread.writing = nullptr;
  }

  /// Of this thread, or null.
  static const Writing* current() { return this_thread.writing; }
  CallSite site() const { return site_; }
  /// How the target with that buffer came to share it, where it is a view.
  ViewChain views_of(const Storage& storage) const;

 private:
  void add(const Tensor& target) {
    if (target.defined() && count_ < targets_.size()) targets_[count_++] = target.impl().get();
  }
  void add(const std::vector<Tensor>& targets) {
    for (const Tensor& target : targets) add(target);
  }

  bool outermost_;
  uint8_t count_ = 0;
  CallSite site_;
  std::array<const TensorImpl*, 8> targets_;
};

}  // namespace shard
