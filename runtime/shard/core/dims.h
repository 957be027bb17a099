// Shapes, shape-like attributes and scalars: the plain values that ops take besides tensors.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "shard/core/convert.h"
#include "shard/core/dtype.h"
#include "shard/core/export.h"
#include "shard/core/small_vec.h"

namespace shard {

/// The largest number of dims of a tensor.
inline constexpr int kMaxRank = 8;

/// The shape of a tensor, or a position in it: up to kMaxRank int64 values, outermost first. A
/// trivially copyable value.
class SHARD_API Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span<const int64_t>(values.begin(), values.size())) {}
  /// Throws out_of_range when there are more than kMaxRank values.
  explicit Dims(std::span<const int64_t> values);
  /// `rank` values, all equal to `value`.
  static Dims filled(int rank, int64_t value);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return values_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return values_[static_cast<size_t>(i)]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  operator std::span<const int64_t>() const { return {values_.data(), static_cast<size_t>(rank_)}; }

  void push_back(int64_t value);
  void erase(int i);
  void insert(int i, int64_t value);

  /// The product of all values; 1 for rank 0.
  int64_t numel() const {
    int64_t product = 1;
    for (int64_t value : *this) product *= value;
    return product;
  }
  /// The product of the values from `first` to before `last`.
  int64_t numel(int first, int last) const {
    int64_t product = 1;
    for (int i = first; i < last; ++i) product *= (*this)[i];
    return product;
  }

  bool operator==(const Dims& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if ((*this)[i] != other[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> values_;
  int rank_ = 0;
};

/// "[2, 3]"
SHARD_API std::string to_string(const Dims& dims);

/// A list of integers as an attribute (a shape, axes, sections). Its length is not limited by
/// kMaxRank.
class IntArray : public SmallVec<int64_t, 8> {
 public:
  using SmallVec<int64_t, 8>::SmallVec;
  IntArray(const Dims& dims) : SmallVec<int64_t, 8>(std::span<const int64_t>(dims)) {}  // NOLINT: a shape is a list
};

SHARD_API std::string to_string(const IntArray& values);

/// A number as an attribute. It records whether it was an integer, so that int64 values keep all
/// bits.
class Scalar {
 public:
  Scalar() = default;
  template <std::same_as<bool> T>                          // not from a pointer, which C++ would convert to bool
  Scalar(T value) : integer_(value), is_integer_(true) {}  // NOLINT: literals convert
  /// Any integer type. A value that fits only into unsigned 64 bits is stored as a double.
  template <std::integral T>
  requires(!std::same_as<T, bool>) Scalar(T value) {  // NOLINT
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == sizeof(int64_t)) {
      if (value > static_cast<T>(std::numeric_limits<int64_t>::max())) {
        real_ = static_cast<double>(value);
        return;
      }
    }
    integer_ = static_cast<int64_t>(value);
    is_integer_ = true;
  }
  Scalar(float value) : real_(value) {}   // NOLINT
  Scalar(double value) : real_(value) {}  // NOLINT

  bool is_integer() const { return is_integer_; }
  /// The number as an element of the dtype of T, converted like the op `cast`.
  template <class T>
  T to() const {
    return is_integer_ ? convert<T>(integer_) : convert<T>(real_);
  }
  bool operator==(const Scalar& other) const {
    return is_integer_ == other.is_integer_ && (is_integer_ ? integer_ == other.integer_ : real_ == other.real_);
  }

 private:
  int64_t integer_ = 0;
  double real_ = 0;
  bool is_integer_ = false;
};

/// Shape and element type of a tensor.
struct Meta {
  Dims dims;
  DType dtype = DType::float32;

  int64_t numel() const { return dims.numel(); }
  /// Bytes of all elements.
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype); }
  bool operator==(const Meta& other) const { return dtype == other.dtype && dims == other.dims; }
};

/// "f32[2, 3]"
SHARD_API std::string to_string(const Meta& meta);

[[noreturn]] SHARD_API void fail_size(const char* op, const Meta& meta);
/// Meta::bytes for an unchecked shape. Throws out_of_range, naming `op` if given, for a negative
/// dim, and where a product of dims, in bytes, does not fit int64. Dims of 0 are left out of the
/// product, so that the product of any range of dims fits too.
inline size_t checked_bytes(const Meta& meta, const char* op = nullptr) {
  int64_t bytes = static_cast<int64_t>(size_of(meta.dtype));
  bool bad = false;
  bool empty = false;
  for (const int64_t size : meta.dims) {
    empty |= size == 0;
    bad |= size < 0;
    bad |= __builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes);
  }
  if (bad) fail_size(op, meta);
  return empty ? 0 : static_cast<size_t>(bytes);
}

/// `axis` counted from 0; negative values count from the end. Throws out_of_range, naming `op`,
/// unless -rank <= axis < rank (a rank of 0 counts as 1, as for a scalar).
SHARD_API int normalize_axis(std::string_view op, std::string_view what, int64_t axis, int rank);

}  // namespace shard
