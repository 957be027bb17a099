// Ops of math.yaml that are composites of other ops.
#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/core/dtype.h"
#include "shard/core/error.h"
#include "shard/ops/api.h"
#include "shard/ops/math_ops.h"

namespace shard::external {
namespace {

double largest_of(DType dtype) {
  switch (dtype) {
    case DType::float16: return 65504;
    case DType::bfloat16: return std::ldexp(255.0, 120);  // 8 bits of 1 below 2^128
    case DType::float32: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}

}  // namespace

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value) {
  if (mask.dtype() != DType::boolean) {
    fail(ErrorCode::dtype_mismatch, "[masked_fill] mask is {}, but must be bool; compare it with a number",
         to_string(mask.meta()));
  }
  if (!is_floating(x.dtype()) && !value.is_integer()) {
    fail(ErrorCode::dtype_mismatch,
         "[masked_fill] value is {}, but x is {}, which needs an integer; cast x to a float dtype first",
         value.to<double>(), to_string(x.meta()));
  }
  return where(mask, full_like(x, value), x);
}

Tensor nan_to_num(const Tensor& x, double nan, double posinf, double neginf) {
  if (!is_floating(x.dtype())) return assign(x);
  const double largest = largest_of(x.dtype()), infinity = std::numeric_limits<double>::infinity();
  const auto filled = [&](const Tensor& others, const Tensor& mask, double value) {
    const double held = std::isfinite(value) ? std::clamp(value, -largest, largest) : value;
    return where(mask, full_like(x, held), others);
  };
  const Tensor above = filled(x, equal(x, full_like(x, infinity)), posinf);
  return filled(filled(above, equal(x, full_like(x, -infinity)), neginf), isnan(x), nan);
}

}  // namespace shard::external
