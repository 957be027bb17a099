// Activations that are made of other ops.
#include "shard/core/error.h"
#include "shard/ops/activation_ops.h"
#include "shard/ops/api.h"

namespace shard::external {
namespace {

/// The shape in which alpha broadcasts to x, and how many elements it has.
IntArray alpha_shape(const Tensor& x, const std::string& data_format, const std::string& mode) {
  const int rank = x.dims().rank();
  IntArray shape(static_cast<size_t>(rank), 1);
  if (mode == "channel" && rank > 1) {
    const int channel = data_format.ends_with('C') ? rank - 1 : 1;
    shape[static_cast<size_t>(channel)] = x.dims()[channel];
  } else if (mode == "element" && rank > 0) {
    for (int d = 1; d < rank; ++d) shape[static_cast<size_t>(d)] = x.dims()[d];
  } else if (mode != "all") {
    fail(
        ErrorCode::invalid_argument,
        "[prelu] mode is '{}' and x is {}, but mode must be all, channel (for x with 2 or more dims) or element (for x "
        "with a dim)",
        mode, to_string(x.meta()));
  }
  return shape;
}

}  // namespace

Tensor prelu(const Tensor& x, const Tensor& alpha, const std::string& data_format, const std::string& mode) {
  const IntArray shape = alpha_shape(x, data_format, mode);
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  if (alpha.numel() != count) {
    fail(ErrorCode::shape_mismatch, "[prelu] alpha is {} and x is {}, but in mode {} alpha must have {} elements",
         to_string(alpha.meta()), to_string(x.meta()), mode, count);
  }
  return where(greater_than(x, full_like(x, 0)), x, multiply(x, reshape(alpha, shape)));
}

}  // namespace shard::external
