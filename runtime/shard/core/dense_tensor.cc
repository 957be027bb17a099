#include "shard/core/dense_tensor.h"

#include <cstring>

#include "shard/core/convert.h"

namespace shard {

Overlap overlap(const DenseTensor& a, const DenseTensor& b) {
  if (!a.defined() || !b.defined() || !(a.storage() == b.storage())) return Overlap::none;
  const size_t a_end = a.offset() + a.meta().bytes();
  const size_t b_end = b.offset() + b.meta().bytes();
  if (a.meta().bytes() == 0 || b.meta().bytes() == 0 || a_end <= b.offset() || b_end <= a.offset())
    return Overlap::none;
  return a.offset() == b.offset() && a_end == b_end ? Overlap::equal : Overlap::partial;
}

DenseTensor clone(const DenseTensor& tensor) {
  DenseTensor copy = DenseTensor::allocate(tensor.device(), tensor.meta(), tensor.storage()->meter());
  copy_into(copy, tensor);
  return copy;
}

void convert_floats(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  if (to == nullptr || from == nullptr || count == 0) return;
  if (to_dtype == from_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * size_of(to_dtype));
    return;
  }
  visit_dtype(from_dtype, [&]<class From>(TypeTag<From>) {
    visit_dtype(to_dtype, [&]<class To>(TypeTag<To>) {
      if constexpr (is_floating(dtype_of<From>) && is_floating(dtype_of<To>)) {
        using Wide = std::conditional_t<std::is_same_v<From, double>, double, float>;
        for (int64_t i = 0; i < count; ++i)
          static_cast<To*>(to)[i] = convert<To>(static_cast<Wide>(static_cast<const From*>(from)[i]));
      } else {
        fail(ErrorCode::internal, "cannot convert {} to {} between layouts", to_string(from_dtype),
             to_string(to_dtype));
      }
    });
  });
}

DenseTensor convert_floats(const DenseTensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype || tensor.storage()->state() == Storage::State::absent) return tensor;
  DenseTensor result = DenseTensor::allocate(tensor.device(), {tensor.dims(), dtype}, tensor.storage()->meter());
  if (!tensor.has_data() || !result.has_data()) return result;
  if (tensor.device() == kCpu) {
    convert_floats(result.raw(), dtype, tensor.raw(), tensor.dtype(), tensor.numel());
    return result;
  }
  const DenseTensor from = DenseTensor::allocate(kCpu, tensor.meta());
  copy_into(from, tensor);
  copy_into(result, convert_floats(from, dtype));
  return result;
}

void copy_into(const DenseTensor& to, const DenseTensor& from) {
  if (!to.has_data() || !from.has_data()) return;
  copy_bytes(to.device(), to.raw(), from.device(), from.raw(), from.meta().bytes());
}

}  // namespace shard
