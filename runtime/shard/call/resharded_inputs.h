// Passes the resharded copies of a distributed call's inputs to whoever wants to keep them.
#pragma once

#include <utility>
#include <vector>

#include "shard/core/tensor.h"
#include "shard/core/thread_state.h"
#include "shard/dist/spec.h"

namespace shard::call {

/// While an object of this class exists, distributed calls of this thread add the inputs that they
/// have resharded to it. If objects are nested, the innermost one gets them.
class ReshardedInputs {
 public:
  struct Entry {
    const TensorImpl* input;
    const DistSpec* spec;  // the layout of `value`
    DenseTensor value;
  };

  ReshardedInputs() : before_(std::exchange(this_thread.resharded_inputs, this)) {}
  ReshardedInputs(const ReshardedInputs&) = delete;
  ReshardedInputs& operator=(const ReshardedInputs&) = delete;
  ~ReshardedInputs() { this_thread.resharded_inputs = before_; }

  /// The innermost object of this thread, or null.
  static ReshardedInputs* current() { return this_thread.resharded_inputs; }
  void add(const TensorImpl* input, const DistSpec* spec, const DenseTensor& value) {
    entries_.push_back({input, spec, value});
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  ReshardedInputs* const before_;
  std::vector<Entry> entries_;
};

}  // namespace shard::call
