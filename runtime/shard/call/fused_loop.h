// Loop fusion: consecutive elementwise kernels run as one loop over blocks of rows, so that what
// one kernel writes is still in the cache when the next one reads it.
#pragma once

#include <memory>
#include <vector>

#include "shard/call/binder.h"
#include "shard/kernels/cpu/epilogue.h"

namespace shard::call {

/// A tensor of a step, and the buffer that it is in.
struct FusedTensor {
  BoundTensor bound;
  const void* buffer;
};

/// Steps that run as one loop over blocks of rows.
class LoopStep final : public BoundStep {
 public:
  /// `block` is in rows of `length` elements. The caller keeps the steps alive.
  LoopStep(std::vector<BoundStep*> steps, int64_t rows, int64_t length, int64_t block)
      : steps_(std::move(steps)), rows_(rows), length_(length), block_(block) {}
  void run() override { run_rows_from(0, rows_); }
  /// The same for elements [begin, end) of the results, which are whole rows.
  void run_elements(int64_t begin, int64_t end) { run_rows_from(begin / length_, end / length_); }

 private:
  void run_rows_from(int64_t begin, int64_t end);

  std::vector<BoundStep*> steps_;
  int64_t rows_, length_, block_;
};

/// A kernel that takes an epilogue (kernels/cpu/epilogue.h), and the loop that is one.
class EpilogueStep final : public BoundStep {
 public:
  /// The caller keeps the kernel alive.
  EpilogueStep(BoundStep& kernel, std::unique_ptr<LoopStep> loop)
      : kernel_(kernel), loop_(std::move(loop)),
        epilogue_([this](int64_t begin, int64_t end) { loop_->run_elements(begin, end); }) {}
  void run() override;

 private:
  BoundStep& kernel_;
  std::unique_ptr<LoopStep> loop_;
  cpu::Epilogue epilogue_;
};

/// Loops of arithmetic after products of these dtypes are faster as epilogues. bfloat16 is not among them: loops took
/// longer between the processor's 16-bit products than after them.
inline bool gains_by_epilogue(DType dtype) { return dtype == DType::float32 || dtype == DType::float64; }

/// Collects steps as long as they fit into one loop. All steps must compute the same number of
/// elements. Each tensor has that many elements, or one, or a number that is the same for all such
/// tensors, which are repeated along the first dims. No step may read or write bytes of another
/// step's results in another order than they are made in.
class FusedLoop {
 public:
  /// `block` is the number of elements of a block. Steps with fewer elements are not taken.
  explicit FusedLoop(int64_t block) : block_(block) {}

  /// Makes the loop the epilogue of this kernel, and returns false if the kernel has not one result that is large enough.
  bool follow(BoundStep& kernel, const std::vector<FusedTensor>& tensors);
  /// Takes the step, and returns false if it does not fit.
  bool add(BoundStep& step, const std::vector<FusedTensor>& tensors);
  /// The loop over all steps that were taken, after the kernel that it follows. The caller keeps the steps alive.
  std::unique_ptr<BoundStep> make() const;

 private:
  struct Use {
    const void* buffer;
    size_t offset;
    DType dtype;
    bool cut, written;
  };
  bool fits(const std::vector<FusedTensor>& tensors, std::vector<Use>& uses, int64_t& count, int64_t& length) const;

  int64_t block_;
  int64_t count_ = 0;            // elements of each result
  int64_t length_ = 1;           // elements of a row: those of the repeated tensors, if they have more than one
  int64_t line_ = 0;             // elements of a line of the kernel's result: a whole number of rows
  BoundStep* kernel_ = nullptr;  // that the loop follows
  std::vector<BoundStep*> steps_;
  std::vector<Use> uses_;
};

}  // namespace shard::call
