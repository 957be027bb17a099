// Counters of the bytes of captures, which outlive them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/storage.h"

namespace shard::program {

/// What counts the bytes of captures. A tensor that a function has put away refers to it when the capture is over. So none is ever freed, and one that is
/// referred to serves no other capture: by its address a tensor of another capture is known.
class Meters {
 public:
  static Meters& instance() {
    static Meters& all = *new Meters;  // tensors may outlive all static variables
    return all;
  }
  MemoryMeter& take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return *all_.emplace_back(std::make_unique<MemoryMeter>());
    MemoryMeter* const meter = free_.back();
    free_.pop_back();
    return *meter;
  }
  void give_back(MemoryMeter& meter) {
    if (meter.live != 0) return;
    const std::lock_guard lock(mutex_);
    free_.push_back(&meter);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<MemoryMeter>> all_;
  std::vector<MemoryMeter*> free_;
};

/// Has a counter for as long as it lives.
class Metered {
 protected:
  Metered() = default;
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;
  ~Metered() { Meters::instance().give_back(counted_); }
  MemoryMeter& counted_ = Meters::instance().take();
};

}  // namespace shard::program
