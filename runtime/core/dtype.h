// Element types. A new one is added to DType, to the table in dtype.cc and to visit_dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/float16.h"

namespace shard {

enum class DType : uint8_t { float32, float64, bfloat16, float16, int32, int64, uint8, boolean };

inline constexpr int kNumDTypes = 8;

/// Bytes of one element.
constexpr size_t size_of(DType dtype) {
  constexpr uint8_t sizes[kNumDTypes] = {4, 8, 2, 2, 4, 8, 1, 1};
  return sizes[static_cast<int>(dtype)];
}

/// "float32", "bool", ...
const char* to_string(DType dtype);
/// "f32", "bool", ...: for tables and messages.
const char* short_name(DType dtype);
/// The dtype of that name ("float32", "int64", "bool", ...). Throws invalid_argument for an unknown
/// name.
DType parse_dtype(std::string_view name);

constexpr bool is_floating(DType dtype) { return dtype <= DType::float16; }
constexpr bool is_integral(DType dtype) {
  return dtype == DType::int32 || dtype == DType::int64 || dtype == DType::uint8;
}

template <class T>
struct dtype_of_t;
template <>
struct dtype_of_t<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct dtype_of_t<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct dtype_of_t<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct dtype_of_t<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct dtype_of_t<int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct dtype_of_t<int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct dtype_of_t<uint8_t> {
  static constexpr DType value = DType::uint8;
};
template <>
struct dtype_of_t<bool> {
  static constexpr DType value = DType::boolean;
};

template <class T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type of `dtype`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32: return f(TypeTag<float>{});
    case DType::float64: return f(TypeTag<double>{});
    case DType::bfloat16: return f(TypeTag<bfloat16>{});
    case DType::float16: return f(TypeTag<float16>{});
    case DType::int32: return f(TypeTag<int32_t>{});
    case DType::int64: return f(TypeTag<int64_t>{});
    case DType::uint8: return f(TypeTag<uint8_t>{});
    case DType::boolean: return f(TypeTag<bool>{});
  }
  fail(ErrorCode::internal, "a dtype with the value {} does not exist", static_cast<int>(dtype));
}

}  // namespace shard
