#include "shard/core/tensor.h"

#include <fmt/format.h>

#include "shard/core/tracer.h"

namespace shard {

std::string TensorImpl::describe() const { return to_string(meta()); }

Ref<TensorImpl> TensorImpl::alias() const { return Ref<TensorImpl>::adopt(new TensorImpl(value)); }

void Tensor::check_count(int64_t count, const Dims& dims) {
  for (int64_t size : dims) {
    if (size < 0)
      fail(ErrorCode::invalid_argument, "invalid shape {} of a tensor: dims must not be negative", to_string(dims));
  }
  checked_bytes({dims, DType::uint8}, "from_data");
  if (count != dims.numel()) {
    fail(ErrorCode::shape_mismatch, "{} values do not fill a tensor of shape {}, which has {} elements", count,
         to_string(dims), dims.numel());
  }
}

void Tensor::fail_undefined() { fail(ErrorCode::undefined, "an undefined tensor was used where a value is needed"); }

void fail_escaped(std::string_view op, std::string_view tensor) {
  fail(ErrorCode::no_data,
       "[{}] {} was made while a function was captured, so it has no value; return it from the function, and use what "
       "its calls return",
       op, tensor);
}

DenseTensor Tensor::to_host(DType dtype) const {
  if (dtype != this->dtype()) {
    fail(ErrorCode::dtype_mismatch, "a {} tensor cannot be read as {}; cast it first", to_string(this->dtype()),
         to_string(dtype));
  }
  if (Tracer* const tracer = Tracer::current()) {
    tracer->refuse("to_vector", fmt::format("it reads the value of {}, which is known only when the program runs. "
                                            "Return the tensor and read it outside, or compute with it "
                                            "where the program branches (where, multiply by a mask)",
                                            get().describe()));
  }
  const DenseTensor host = to_device(*this, kCpu).impl()->value;
  if (!host.has_data() && host.symbol() != 0) fail_escaped("to_vector", get().describe());
  if (!host.has_data()) {
    fail(ErrorCode::no_data,
         "{} has no value to read: it belongs to a dry world, which tracks shapes, layouts and traffic only. Skip the "
         "read in a dry run, or run the program in a world with data (World::local)",
         get().describe());
  }
  return host;
}

Tensor on_default_device(Tensor tensor) {
  const Device device = default_device();
  return device == kCpu ? tensor : to_device(tensor, device);
}

Tensor to_device(const Tensor& tensor, Device device) {
  if (tensor.is_dist()) {
    fail(ErrorCode::layout,
         "a distributed tensor ({}) has no single device; use full_tensor(tensor) or local(tensor) first",
         tensor.get().describe());
  }
  Tracer* const tracer = Tracer::current();
  if (tracer != nullptr) tracer->adopt(tensor);
  const DenseTensor& value = tensor.get().value;
  value.storage()->check_read();
  if (value.device() == device) return tensor;
  DenseTensor copy = DenseTensor::allocate(device, value.meta(), value.storage()->meter(), "to");
  copy_into(copy, value);
  if (tracer != nullptr)
    copy.set_symbol(tracer->convert(Tracer::Conversion::clone, value, {.meta = value.meta(), .device = device}, -1));
  return Tensor(std::move(copy));
}

}  // namespace shard
