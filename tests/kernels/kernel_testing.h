// Helpers of the kernel tests: dense tensors from doubles, and kernels called through the registry.
#pragma once

#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "shard/kernels/registry.h"

namespace shard::testing {

using Unary = void(const OpContext&, const DenseTensor&, DenseTensor&);
using Binary = void(const OpContext&, const DenseTensor&, const DenseTensor&, DenseTensor&);
using Reduce = void(const OpContext&, const DenseTensor&, const IntArray&, bool, DenseTensor&);

inline constexpr auto kFloatDTypes = dtypes_of(FloatTypes{});
inline constexpr auto kIntDTypes = dtypes_of(IntTypes{});
inline constexpr auto kNumberDTypes = dtypes_of(NumberTypes{});
inline constexpr auto kAllDTypes = dtypes_of(AllTypes{});

inline DenseTensor uninitialized(const Dims& dims, DType dtype) { return DenseTensor::allocate(kCpu, {dims, dtype}); }

/// A tensor whose elements are the values, rounded to dtype.
inline DenseTensor tensor(const std::vector<double>& values, const Dims& dims, DType dtype = DType::float32) {
  DenseTensor result = uninitialized(dims, dtype);
  REQUIRE(static_cast<int64_t>(values.size()) == dims.numel());
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (size_t i = 0; i < values.size(); ++i) {
      result.data<T>()[i] = static_cast<T>(static_cast<Compute<T>>(values[i]));
    }
  });
  return result;
}

inline std::vector<double> values(const DenseTensor& x) {
  std::vector<double> result;
  visit_dtype(x.dtype(), [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) result.push_back(static_cast<double>(x.data<T>()[i]));
  });
  return result;
}

/// Values that fit any number dtype: small integers for integers, halves for floats.
inline DenseTensor arbitrary(const Dims& dims, DType dtype, unsigned seed = 1) {
  std::mt19937 engine(seed);
  std::vector<double> numbers(static_cast<size_t>(dims.numel()));
  for (double& value : numbers) {
    value = static_cast<double>(engine() % 17);
    if (dtype != DType::uint8 && dtype != DType::boolean) value -= 8;
    if (is_floating(dtype)) value *= 0.5;
    if (dtype == DType::boolean) value = value > 8;
  }
  return tensor(numbers, dims, dtype);
}

/// The relative error that one rounding of dtype may cost: half a unit in the last place of a 16-bit float, which is computed in float32, and
/// a whole one elsewhere.
inline double rounding(DType dtype) { return epsilon_of(dtype) / (compute_dtype(dtype) == dtype ? 1 : 2); }

/// Equal up to `ulps` roundings of the dtype; exactly equal for integers.
inline void check_close(const DenseTensor& got, const std::vector<double>& expected, double ulps = 2) {
  const std::vector<double> actual = values(got);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]))) continue;
    const double tolerance =
        ulps * rounding(got.dtype()) * std::abs(expected[i]) + (rounding(got.dtype()) > 0 ? 1e-37 : 0);
    INFO("element " << i << " of " << to_string(got.meta()) << ": " << actual[i] << ", expected " << expected[i]);
    REQUIRE(std::abs(actual[i] - expected[i]) <= tolerance);
  }
}

/// Calls the CPU kernel of signature Fn.
template <class Fn, class... Args>
void call_in(const OpContext& ctx, const char* name, DType dtype, Args&&... args) {
  kernel_table(name).find<Fn>(ctx, kCpu, dtype).function(ctx, std::forward<Args>(args)...);
}
template <class Fn, class... Args>
void call(const char* name, DType dtype, Args&&... args) {
  call_in<Fn>(OpContext{name}, name, dtype, std::forward<Args>(args)...);
}

/// The index into `dims` that position `i` of `out` reads when dims broadcast to out.
inline size_t broadcast_index(const Dims& out, const Dims& dims, int64_t i) {
  int64_t index = 0, stride = 1;
  for (int d = out.rank() - 1; d >= 0; --d) {
    const int at = d - (out.rank() - dims.rank());
    const int64_t position = i % out[d];
    i /= out[d];
    if (at < 0) continue;
    index += dims[at] == 1 ? 0 : position * stride;
    stride *= dims[at];
  }
  return static_cast<size_t>(index);
}

}  // namespace shard::testing
