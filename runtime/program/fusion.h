// Elementwise kernels that follow each other run as one loop: block by block of rows, so that what one writes the next finds in the cache.
#pragma once

#include <memory>
#include <vector>

#include "call/binder.h"

namespace shard::program {

/// A tensor of a step, and the buffer that it is in.
struct FusedTensor {
  call::BoundTensor bound;
  const void* buffer;
};

/// Collects steps as long as they fit. Each computes as many elements as the others, from tensors of that many elements, of one, or of a number that is
/// the same for all and that are repeated along the first dims; and none reads or writes bytes of another step's results in another order than those
/// are made in.
class FusedLoop {
 public:
  /// `block`: elements of a block. Steps that have fewer are not taken.
  explicit FusedLoop(int64_t block) : block_(block) {}

  /// Takes the step, unless it does not fit.
  bool add(call::BoundStep& step, const std::vector<FusedTensor>& tensors);
  /// The loop over what has been taken. The steps are kept by the caller.
  std::unique_ptr<call::BoundStep> make() const;

 private:
  struct Use {
    const void* buffer;
    size_t offset;
    DType dtype;
    bool cut, written;
  };
  bool fits(const std::vector<FusedTensor>& tensors, std::vector<Use>& uses, int64_t& count, int64_t& length) const;

  int64_t block_;
  int64_t count_ = 0;   // elements of each result
  int64_t length_ = 1;  // of a row: that of the tensors that are repeated, if they have more than one element
  std::vector<call::BoundStep*> steps_;
  std::vector<Use> uses_;
};

}  // namespace shard::program
