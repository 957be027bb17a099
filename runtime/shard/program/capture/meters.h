// Byte counters of captures, which outlive the captures.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "shard/core/storage.h"

namespace shard::program {

/// The counters of the bytes of captures. A tensor that a function has stored still refers to its
/// counter when the capture is over. So counters are never freed, and one that is still referred to
/// is not used for another capture. The address of its counter identifies a tensor that belongs to
/// another capture.
class Meters {
 public:
  static Meters& instance() {
    static Meters& all = *new Meters;  // never destroyed: tensors may outlive all static variables
    return all;
  }
  MemoryMeter& take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return *all_.emplace_back(std::make_unique<MemoryMeter>());
    MemoryMeter* const meter = free_.back();
    free_.pop_back();
    return *meter;
  }
  void release(MemoryMeter& meter) {
    if (meter.live != 0) return;
    const std::lock_guard lock(mutex_);
    free_.push_back(&meter);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryMeter>> all_;
  std::vector<MemoryMeter*> free_;
};

/// Owns a counter for its lifetime.
class Metered {
 protected:
  Metered() = default;
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;
  ~Metered() { Meters::instance().release(counted_); }
  MemoryMeter& counted_ = Meters::instance().take();
};

}  // namespace shard::program
