#include "shard/api/operators.h"

#include <ostream>

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

/// The number as a 0-d tensor beside `like`: of its dtype and device, and replicated on its mesh.
Tensor number_like(const Scalar& number, const Tensor& like) {
  if (!is_floating(like.dtype()) && !number.is_integer()) {
    fail(ErrorCode::dtype_mismatch,
         "cannot use the number {} with a tensor of {}: it is not an integer; cast the tensor first",
         number.to<double>(), to_string(like.dtype()));
  }
  if (!like.is_dist()) return full({}, number, like.dtype(), like.device());
  return full({}, number, DistSpec::replicated(spec_of(like)->mesh(), 0), like.dtype(), like.device());
}

/// Calls op(x, y) with tensors in place of numbers.
template <class Op>
decltype(auto) with_tensors(const Operand& x, const Operand& y, Op&& op) {
  if (x.tensor == nullptr) return op(number_like(x.number, *y.tensor), *y.tensor);
  if (y.tensor == nullptr) return op(*x.tensor, number_like(y.number, *x.tensor));
  return op(*x.tensor, *y.tensor);
}

}  // namespace

Tensor operator+(const Operand& x, const Operand& y) {
  if (x.tensor == nullptr) return scale(*y.tensor, 1, x.number, true, x.site);
  if (y.tensor == nullptr) return scale(*x.tensor, 1, y.number, true, x.site);
  return add(*x.tensor, *y.tensor, x.site);
}

Tensor operator-(const Operand& x, const Operand& y) {
  if (x.tensor == nullptr) return scale(*y.tensor, -1, x.number, true, x.site);
  if (y.tensor == nullptr) return scale(*x.tensor, 1, negated(y.number), true, x.site);
  return subtract(*x.tensor, *y.tensor, x.site);
}

Tensor operator*(const Operand& x, const Operand& y) {
  if (x.tensor == nullptr) return scale(*y.tensor, x.number, no_bias(*y.tensor), true, x.site);
  if (y.tensor == nullptr) return scale(*x.tensor, y.number, no_bias(*x.tensor), true, x.site);
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
  return y.tensor == nullptr ? scale_(x, 1, y.number, true, y.site) : add_(x, *y.tensor, y.site);
}

Tensor& operator-=(Tensor& x, const Operand& y) {
  return y.tensor == nullptr ? scale_(x, 1, negated(y.number), true, y.site) : subtract_(x, *y.tensor, y.site);
}

Tensor& operator*=(Tensor& x, const Operand& y) {
  return y.tensor == nullptr ? scale_(x, y.number, no_bias(x), true, y.site) : multiply_(x, *y.tensor, y.site);
}

Tensor& operator/=(Tensor& x, const Operand& y) {
  return divide_(x, y.tensor == nullptr ? number_like(y.number, x) : *y.tensor, y.site);
}

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) { return stream << to_text(tensor); }

}  // namespace shard
