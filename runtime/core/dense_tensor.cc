#include "core/dense_tensor.h"

namespace shard {

Overlap overlap(const DenseTensor& a, const DenseTensor& b) {
  if (!a.defined() || !b.defined() || !(a.storage() == b.storage())) return Overlap::none;
  const size_t a_end = a.offset() + a.meta().bytes();
  const size_t b_end = b.offset() + b.meta().bytes();
  if (a.meta().bytes() == 0 || b.meta().bytes() == 0 || a_end <= b.offset() || b_end <= a.offset()) return Overlap::none;
  return a.offset() == b.offset() && a_end == b_end ? Overlap::equal : Overlap::partial;
}

DenseTensor clone(const DenseTensor& tensor) {
  DenseTensor copy = DenseTensor::allocate(tensor.device(), tensor.meta(), tensor.storage()->meter());
  copy_into(copy, tensor);
  return copy;
}

void copy_into(const DenseTensor& to, const DenseTensor& from) {
  if (!to.has_data() || !from.has_data()) return;
  copy_bytes(to.device(), to.raw(), from.device(), from.raw(), from.meta().bytes());
}

}  // namespace shard
