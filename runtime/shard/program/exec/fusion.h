// Loop fusion: consecutive elementwise kernels run as one loop over blocks of rows, so that what
// one kernel writes is still in the cache when the next one reads it.
#pragma once

#include <memory>
#include <vector>

#include "shard/call/binder.h"

namespace shard::program {

/// A tensor of a step, and the buffer that it is in.
struct FusedTensor {
  call::BoundTensor bound;
  const void* buffer;
};

/// Collects steps as long as they fit into one loop. All steps must compute the same number of
/// elements. Each tensor has that many elements, or one, or a number that is the same for all such
/// tensors, which are repeated along the first dims. No step may read or write bytes of another
/// step's results in another order than they are made in.
class FusedLoop {
 public:
  /// `block` is the number of elements of a block. Steps with fewer elements are not taken.
  explicit FusedLoop(int64_t block) : block_(block) {}

  /// Takes the step, and returns false if it does not fit.
  bool add(call::BoundStep& step, const std::vector<FusedTensor>& tensors);
  /// The loop over all steps that were taken. The caller keeps the steps alive.
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
  int64_t length_ = 1;  // elements of a row: those of the repeated tensors, if they have more than one
  std::vector<call::BoundStep*> steps_;
  std::vector<Use> uses_;
};

}  // namespace shard::program
