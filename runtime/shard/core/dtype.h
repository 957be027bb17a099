// Element types: one table, from which the enum, sizes, names, C++ types and lists of types follow. docs/architecture.md says how to add one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shard/core/error.h"
#include "shard/core/export.h"
#include "shard/core/float16.h"

namespace shard {

enum class DTypeKind : uint8_t { floating, integer, truth };

/// One row per dtype: its enumerator, its name, its short name, the C++ type of an element, the one that arithmetic on it is done in, its
/// kind, and of a float the number of significant bits.
#define SHARD_DTYPES(ROW)                                                  \
  ROW(float32, "float32", "f32", float, float, floating, 24)               \
  ROW(float64, "float64", "f64", double, double, floating, 53)             \
  ROW(bfloat16, "bfloat16", "bf16", ::shard::bfloat16, float, floating, 8) \
  ROW(float16, "float16", "f16", ::shard::float16, float, floating, 11)    \
  ROW(int32, "int32", "i32", int32_t, int32_t, integer, 0)                 \
  ROW(int64, "int64", "i64", int64_t, int64_t, integer, 0)                 \
  ROW(uint8, "uint8", "u8", uint8_t, uint8_t, integer, 0)                  \
  ROW(boolean, "bool", "bool", bool, bool, truth, 0)

enum class DType : uint8_t {
#define SHARD_ROW(Enumerator, ...) Enumerator,
  SHARD_DTYPES(SHARD_ROW)
#undef SHARD_ROW
};

/// What is known of the C++ type of an element. A type that no dtype has computes in itself.
template <class T>
struct ElementType {
  using Compute = T;
};
#define SHARD_ROW(Enumerator, name, brief, Type, Math, ...) \
  template <>                                               \
  struct ElementType<Type> {                                \
    static constexpr DType dtype = DType::Enumerator;       \
    using Compute = Math;                                   \
  };
SHARD_DTYPES(SHARD_ROW)
#undef SHARD_ROW

template <class T>
inline constexpr DType dtype_of = ElementType<T>::dtype;
/// The type that arithmetic on elements of T is done in: float for 16-bit floats, else T.
template <class T>
using Compute = typename ElementType<T>::Compute;
/// True for 16-bit floats.
template <class T>
inline constexpr bool is_half = !std::is_same_v<Compute<T>, T>;

/// A row of the table as a value.
struct DTypeTraits {
  const char* name;
  const char* brief;
  size_t size;
  DType compute;
  DTypeKind kind;
  int digits;
};
inline constexpr DTypeTraits kDTypeTraits[] = {
#define SHARD_ROW(Enumerator, name, brief, Type, Math, kind, digits) \
  {name, brief, sizeof(Type), dtype_of<Math>, DTypeKind::kind, digits},
    SHARD_DTYPES(SHARD_ROW)
#undef SHARD_ROW
};
inline constexpr int kNumDTypes = static_cast<int>(std::size(kDTypeTraits));

constexpr const DTypeTraits& traits_of(DType dtype) { return kDTypeTraits[static_cast<size_t>(dtype)]; }
/// Bytes of one element.
constexpr size_t size_of(DType dtype) { return traits_of(dtype).size; }
/// "float32", "bool", ...
constexpr const char* to_string(DType dtype) { return traits_of(dtype).name; }
/// "f32", "bool", ...: for tables and messages.
constexpr const char* short_name(DType dtype) { return traits_of(dtype).brief; }
constexpr bool is_floating(DType dtype) { return traits_of(dtype).kind == DTypeKind::floating; }
constexpr bool is_integral(DType dtype) { return traits_of(dtype).kind == DTypeKind::integer; }
/// The dtype that arithmetic on `dtype` is done in: float32 for 16-bit floats, else itself.
constexpr DType compute_dtype(DType dtype) { return traits_of(dtype).compute; }
/// The distance from 1 to the next larger number; 0 for dtypes other than floats.
constexpr double epsilon_of(DType dtype) {
  return is_floating(dtype) ? 1.0 / static_cast<double>(uint64_t{1} << (traits_of(dtype).digits - 1)) : 0.0;
}
/// The dtype of that name ("float32", "int64", "bool", ...). Throws invalid_argument.
SHARD_API DType parse_dtype(std::string_view name);

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type of `dtype`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
#define SHARD_ROW(Enumerator, name, brief, Type, ...) \
  case DType::Enumerator: return f(TypeTag<Type>{});
    SHARD_DTYPES(SHARD_ROW)
#undef SHARD_ROW
  }
  fail(ErrorCode::internal, "unknown dtype {}", static_cast<int>(dtype));
}

/// A list of C++ types, for which kernels are registered.
template <class... Ts>
struct Types {};
template <class... A, class... B>
constexpr Types<A..., B...> operator+(Types<A...>, Types<B...>) {
  return {};
}

// The types of the table, by kind.
#define SHARD_ROW(Enumerator, name, brief, Type, Math, kind, ...)                     \
  +std::conditional_t<DTypeKind::kind == DTypeKind::floating, Types<Type>, Types<>> { \
  }
using FloatTypes = decltype(Types<> {} SHARD_DTYPES(SHARD_ROW));
#undef SHARD_ROW
#define SHARD_ROW(Enumerator, name, brief, Type, Math, kind, ...)                    \
  +std::conditional_t<DTypeKind::kind == DTypeKind::integer, Types<Type>, Types<>> { \
  }
using IntTypes = decltype(Types<> {} SHARD_DTYPES(SHARD_ROW));
#undef SHARD_ROW
using NumberTypes = decltype(FloatTypes{} + IntTypes{});
using AllTypes = decltype(NumberTypes{} + Types<bool>{});

/// Calls f(TypeTag<T>{}) for each type.
template <class... Ts, class F>
void for_types(Types<Ts...>, F f) {
  (f(TypeTag<Ts>{}), ...);
}
/// The dtypes of these types.
template <class... Ts>
constexpr std::array<DType, sizeof...(Ts)> dtypes_of(Types<Ts...>) {
  return {dtype_of<Ts>...};
}

}  // namespace shard
