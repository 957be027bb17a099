// Hands the moved copies of a distributed call's inputs to whoever wants to keep them.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "dist/spec.h"

namespace shard::call {

/// While one lives, distributed calls of this thread tell it which inputs they have moved. The innermost is told.
class MovedInputs {
 public:
  struct Entry {
    const TensorImpl* input;
    const DistSpec* spec;  // the layout of `value`
    DenseTensor value;
  };

  MovedInputs();
  MovedInputs(const MovedInputs&) = delete;
  MovedInputs& operator=(const MovedInputs&) = delete;
  ~MovedInputs();

  /// Of this thread, or null.
  static MovedInputs* current();
  void add(const TensorImpl* input, const DistSpec* spec, const DenseTensor& value) { entries_.push_back({input, spec, value}); }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  MovedInputs* const before_;
  std::vector<Entry> entries_;
};

}  // namespace shard::call
