// Operators of tensors: arithmetic, comparisons, in-place arithmetic, and output to streams. They call the ops add, subtract, multiply,
// divide, scale, equal, ... (<shard/ops/math.h>, <shard/ops/logic.h>) and throw what these throw.
#pragma once

#include <concepts>
#include <iosfwd>

#include "shard/core/export.h"
#include "shard/core/tensor.h"

namespace shard {

/// An operand of an operator: a tensor or a number, and the line of the expression. A number takes
/// the dtype of the tensor beside it; a fraction beside an integer tensor is a dtype_mismatch error, and
/// an integer that the dtype cannot hold an out_of_range error.
class Operand {
 public:
  Operand(const Tensor& tensor, CallSite site = CallSite::here()) : tensor(&tensor), site(site) {}  // NOLINT
  template <class T>
  requires std::integral<T> || std::floating_point<T> Operand(T number, CallSite site = CallSite::here())  // NOLINT
      : number(number), site(site) {}

  /// The operand as a tensor. A number becomes a 0-d tensor of the dtype, device and mesh of `other`.
  SHARD_API Tensor beside(const Tensor& other) const;
  /// The number, which `other` can hold: throws out_of_range otherwise.
  SHARD_API const Scalar& number_beside(const Tensor& other) const;

  const Tensor* tensor = nullptr;  // null for a number
  Scalar number;
  CallSite site;
};

SHARD_API Tensor operator+(const Operand& x, const Operand& y);
SHARD_API Tensor operator-(const Operand& x, const Operand& y);
SHARD_API Tensor operator*(const Operand& x, const Operand& y);
SHARD_API Tensor operator/(const Operand& x, const Operand& y);
/// -x, which is x * -1 for unsigned dtypes too.
SHARD_API Tensor operator-(const Operand& x);

/// Elementwise comparisons; the results are bool tensors.
SHARD_API Tensor operator==(const Operand& x, const Operand& y);
SHARD_API Tensor operator!=(const Operand& x, const Operand& y);
SHARD_API Tensor operator<(const Operand& x, const Operand& y);
SHARD_API Tensor operator<=(const Operand& x, const Operand& y);
SHARD_API Tensor operator>(const Operand& x, const Operand& y);
SHARD_API Tensor operator>=(const Operand& x, const Operand& y);

/// In place: writes the buffer of x, which its views see, and returns x.
SHARD_API Tensor& operator+=(Tensor& x, const Operand& y);
SHARD_API Tensor& operator-=(Tensor& x, const Operand& y);
SHARD_API Tensor& operator*=(Tensor& x, const Operand& y);
SHARD_API Tensor& operator/=(Tensor& x, const Operand& y);

/// dtype, shape, layout and values: what to_text returns. Of a distributed tensor it writes the
/// local shard and says so; it never communicates.
SHARD_API std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);

}  // namespace shard
