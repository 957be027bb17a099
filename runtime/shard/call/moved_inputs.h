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
class MovedInputs {
 public:
  struct Entry {
    const TensorImpl* input;
    const DistSpec* spec;  // the layout of `value`
    DenseTensor value;
  };

  MovedInputs() : before_(std::exchange(this_thread.moved_inputs, this)) {}
  MovedInputs(const MovedInputs&) = delete;
  MovedInputs& operator=(const MovedInputs&) = delete;
  ~MovedInputs() { this_thread.moved_inputs = before_; }

  /// The innermost object of this thread, or null.
  static MovedInputs* current() { return this_thread.moved_inputs; }
  void add(const TensorImpl* input, const DistSpec* spec, const DenseTensor& value) {
    entries_.push_back({input, spec, value});
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  MovedInputs* const before_;
  std::vector<Entry> entries_;
};

}  // namespace shard::call
