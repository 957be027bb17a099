// Copies between strided places of memory on the device, of elements of any size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shard/core/dense_tensor.h"
#include "shard/core/dims.h"
#include "shard/core/op_context.h"

namespace shard::cuda {

/// The dims of a copy from the outermost inwards, with the distances of neighbours on both sides. Small enough to be an argument of a
/// kernel.
struct CopyDims {
  static constexpr int kMost = 2 * kMaxRank;  // a repeated dim is two
  int rank = 0;
  int64_t sizes[kMost];
  int64_t to_steps[kMost], from_steps[kMost];
};

/// What is copied, in elements of `element` bytes.
class StridedCopy {
 public:
  explicit StridedCopy(size_t element) : element_(static_cast<int64_t>(element)) {}

  /// A dim inside of those before; steps are in elements, and 0 or negative ones of `from` are allowed. It is joined with the last one
  /// where both sides traverse the two uniformly.
  void add(int64_t size, int64_t to_step, int64_t from_step);
  /// Issues the copy on the device of the DeviceScope: element 0 of the dims is at `to` and `from`.
  void run(const OpContext& ctx, void* to, const void* from) const;

 private:
  int64_t element_;
  int64_t count_ = 1;
  CopyDims dims_;
};

/// Where element `at` of a contiguous tensor is.
inline char* address_of(const DenseTensor& tensor, int64_t at) {
  return static_cast<char*>(tensor.raw()) + at * static_cast<int64_t>(size_of(tensor.dtype()));
}

/// The distances of neighbours in a contiguous tensor, in elements.
inline Dims steps_of(const Dims& dims) {
  Dims steps = dims;
  int64_t product = 1;
  for (int d = dims.rank() - 1; d >= 0; --d) {
    steps[d] = product;
    product *= dims[d];
  }
  return steps;
}

}  // namespace shard::cuda
