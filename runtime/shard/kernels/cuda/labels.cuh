// Checks of labels of classes, one of which may mean that an element does not count.
#pragma once

#include "shard/kernels/cuda/data_check.cuh"

namespace shard::cuda {

/// Describes a label that must be a class or `ignore_index`. `text` is that of its error.
struct alignas(8) ClassRange {
  const char* op;
  int64_t classes, ignore_index;
  std::string (*text)(const char* op, const ArgumentPlace& label, int64_t i, int64_t value, int64_t classes,
                      int64_t ignore_index);
  ArgumentPlace label;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}", text(op, label, position, value, classes, ignore_index));
  }
};

/// Checks the labels that are flat input `input`.
class ClassCheck : public DataCheck<ClassRange> {
 public:
  ClassCheck(const OpContext& ctx, size_t input, const DenseTensor& label, int64_t classes, int64_t ignore_index,
             decltype(ClassRange::text) text)
      : DataCheck(ClassRange{ctx.op, classes, ignore_index, text, ArgumentPlace(ctx, input, label)}), classes_(classes),
        ignore_index_(ignore_index) {}

  /// Whether `value` is a class and counts.
  __device__ bool is_class(int64_t value) const { return value != ignore_index_ && value >= 0 && value < classes_; }
  /// The same of element `position`; reports it where it is neither a class nor ignored.
  __device__ bool admits(int64_t position, int64_t value) const {
    if (is_class(value)) return true;
    if (value != ignore_index_) report(position, value);
    return false;
  }

 private:
  int64_t classes_, ignore_index_;
};

}  // namespace shard::cuda
