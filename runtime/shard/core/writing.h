// Registers which call writes a buffer, for messages about the write.
#pragma once

#include <array>

#include "shard/core/export.h"
#include "shard/core/tensor.h"
#include "shard/core/thread_state.h"

namespace shard {

/// While an object exists, writes of this thread are attributed to a call at `site` with these
/// arguments. Calls may be nested, as in ops that are composed of others; the outermost call
/// counts.
class SHARD_API Writing {
 public:
  /// `targets` are tensors and lists of them. Targets beyond the capacity are not distinguished
  /// from other buffers.
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

  /// The outermost one of this thread, or null.
  static const Writing* current() { return this_thread.writing; }
  CallSite site() const { return site_; }
  /// The views through which the target with that buffer came to share it.
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
