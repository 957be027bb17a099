#include "shard/api/operators.h"

#include <ostream>
#include <utility>

#include "shard/core/error.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/creation.h"
#include "shard/ops/logic.h"
#include "shard/ops/math.h"

namespace shard {
namespace {

/// The bias of a product by `scale`: adding -0.0 keeps the sign of a zero.
constexpr double kNoBias = -0.0;

Scalar no_bias(const Tensor& x) { return is_floating(x.dtype()) ? Scalar(kNoBias) : Scalar(0); }

Scalar negated(const Scalar& number) {
  if (!number.is_integer()) return -number.to<double>();
  return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(number.to<int64_t>()));
}

/// Calls op(x, y) with tensors in place of numbers.
template <class Op>
decltype(auto) with_tensors(const Operand& x, const Operand& y, Op&& op) {
  if (x.tensor == nullptr) return op(x.beside(*y.tensor), *y.tensor);
  if (y.tensor == nullptr) return op(*x.tensor, y.beside(*x.tensor));
  return op(*x.tensor, *y.tensor);
}

bool can_hold(DType dtype, int64_t number) {
  switch (dtype) {
    case DType::uint8: return std::in_range<uint8_t>(number);
    case DType::int32: return std::in_range<int32_t>(number);
    case DType::boolean: return number == 0 || number == 1;
    case DType::int64:
    case DType::float32:
    case DType::float64:
    case DType::bfloat16:
    case DType::float16: return true;
  }
  return true;
}

}  // namespace

const Scalar& Operand::number_beside(const Tensor& other) const {
  if (number.is_integer() && !can_hold(other.dtype(), number.to<int64_t>()))
    fail(ErrorCode::out_of_range, "the number {} does not fit into {}: cast the tensor first", number.to<int64_t>(),
         to_string(other.dtype()));
  return number;
}

Tensor Operand::beside(const Tensor& other) const {
  if (tensor != nullptr) return *tensor;
  if (!is_floating(other.dtype()) && !number.is_integer())
    fail(ErrorCode::dtype_mismatch,
         "cannot use the number {} with a tensor of {}: it is not an integer; cast the tensor first",
         number.to<double>(), to_string(other.dtype()));
  const Scalar& value = number_beside(other);
  if (!other.is_dist()) return full({}, value, other.dtype(), other.device());
  return full({}, value, DistSpec::replicated(spec_of(other)->mesh(), 0), other.dtype(), other.device());
}

Tensor operator+(const Operand& x, const Operand& y) {
  if (x.tensor == nullptr) return scale(*y.tensor, 1, x.number_beside(*y.tensor), true, x.site);
  if (y.tensor == nullptr) return scale(*x.tensor, 1, y.number_beside(*x.tensor), true, x.site);
  return add(*x.tensor, *y.tensor, x.site);
}

Tensor operator-(const Operand& x, const Operand& y) {
  if (x.tensor == nullptr) return scale(*y.tensor, -1, x.number_beside(*y.tensor), true, x.site);
  if (y.tensor == nullptr) return scale(*x.tensor, 1, negated(y.number_beside(*x.tensor)), true, x.site);
  return subtract(*x.tensor, *y.tensor, x.site);
}

Tensor operator*(const Operand& x, const Operand& y) {
  if (x.tensor == nullptr) return scale(*y.tensor, x.number_beside(*y.tensor), no_bias(*y.tensor), true, x.site);
  if (y.tensor == nullptr) return scale(*x.tensor, y.number_beside(*x.tensor), no_bias(*x.tensor), true, x.site);
  return multiply(*x.tensor, *y.tensor, x.site);
}

Tensor operator/(const Operand& x, const Operand& y) {
  return with_tensors(x, y, [&](const Tensor& a, const Tensor& b) { return divide(a, b, x.site); });
}

Tensor operator-(const Operand& x) { return scale(*x.tensor, -1, no_bias(*x.tensor), true, x.site); }

Tensor operator==(const Operand& x, const Operand& y) { return with_tensors(x, y, &equal); }
Tensor operator!=(const Operand& x, const Operand& y) { return with_tensors(x, y, &not_equal); }
Tensor operator<(const Operand& x, const Operand& y) { return with_tensors(x, y, &less_than); }
Tensor operator<=(const Operand& x, const Operand& y) { return with_tensors(x, y, &less_equal); }
Tensor operator>(const Operand& x, const Operand& y) { return with_tensors(x, y, &greater_than); }
Tensor operator>=(const Operand& x, const Operand& y) { return with_tensors(x, y, &greater_equal); }

Tensor& operator+=(Tensor& x, const Operand& y) {
  return y.tensor == nullptr ? scale_(x, 1, y.number_beside(x), true, y.site) : add_(x, *y.tensor, y.site);
}

Tensor& operator-=(Tensor& x, const Operand& y) {
  return y.tensor == nullptr ? scale_(x, 1, negated(y.number_beside(x)), true, y.site)
                             : subtract_(x, *y.tensor, y.site);
}

Tensor& operator*=(Tensor& x, const Operand& y) {
  return y.tensor == nullptr ? scale_(x, y.number_beside(x), no_bias(x), true, y.site)
                             : multiply_(x, *y.tensor, y.site);
}

Tensor& operator/=(Tensor& x, const Operand& y) { return divide_(x, y.beside(x), y.site); }

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return stream << to_text(tensor); }

}  // namespace shard
