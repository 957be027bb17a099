// Element types, and the rounding of the 16-bit floats against double precision.
#include "shard/core/dtype.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/core/reduce_type.h"
#include "support/mesh_run.h"

namespace dtype_test {

using namespace shard;
using shard::test::error_of;

namespace {

/// A 16-bit format as IEEE 754 describes it.
struct Format {
  int exponent_bits;
  int mantissa_bits;
};

/// The value of the bits, computed in double.
double decode(Format format, uint16_t bits) {
  const int mantissa_mask = (1 << format.mantissa_bits) - 1;
  const int exponent_mask = (1 << format.exponent_bits) - 1;
  const int bias = exponent_mask / 2;
  const int mantissa = bits & mantissa_mask;
  const int exponent = bits >> format.mantissa_bits & exponent_mask;
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  if (exponent == exponent_mask) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - bias - format.mantissa_bits);
}

/// Rounds to nearest even by searching the magnitudes 0 .. infinity, whose bits are in order. Beyond the largest
/// number the halfway point is that to the next power of two.
uint16_t encode(Format format, float value) {
  const auto infinity = static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(static_cast<double>(value));
  uint16_t low = 0;
  uint16_t high = infinity;
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>(low + (high - low) / 2);
    if (decode(format, middle) <= magnitude) low = middle;
    else high = middle;
  }
  const double below = decode(format, low);
  const double above =
      high == infinity ? 2 * below - decode(format, static_cast<uint16_t>(low - 1)) : decode(format, high);
  const double to_low = magnitude - below;
  const double to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && low % 2 != 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

/// Checks every bit pattern, the halfway points to its neighbour, and the floats just beside them.
template <class T>
void check_format(Format format) {
  int64_t wrong = 0;
  const auto expect = [&](float value) { wrong += T(value).bits != encode(format, value); };
  for (int pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    T value;
    value.bits = bits;
    const double expected = decode(format, bits);
    const float actual = value;
    if (std::isnan(expected)) {
      wrong += !std::isnan(actual) || !std::isnan(static_cast<float>(T(actual)));
      continue;
    }
    wrong += static_cast<double>(actual) != expected || std::signbit(actual) != std::signbit(expected);
    wrong += T(actual).bits != bits;
    if (std::isinf(expected)) continue;
    T next;
    next.bits = static_cast<uint16_t>(bits + 1);
    const double above = decode(format, next.bits);
    // Infinity follows the largest number; its halfway point is one step of the largest numbers further.
    T previous;
    previous.bits = static_cast<uint16_t>(bits - 1);
    const double half = std::isinf(above) ? expected + (expected - decode(format, previous.bits)) / 2
                                          : expected + (above - expected) / 2;
    const auto middle = static_cast<float>(half);
    expect(middle);
    expect(std::nextafter(middle, 0.0f));
    expect(std::nextafter(middle, std::copysign(std::numeric_limits<float>::infinity(), middle)));
  }
  CHECK(wrong == 0);
  for (float value : {1e-45f, -1e-45f, 1e-8f, 3e38f, -3.4e38f, std::numeric_limits<float>::infinity(), 65519.0f,
                      65520.0f, 0.1f, -0.0f}) {
    INFO(value);
    CHECK(T(value).bits == encode(format, value));
  }
}

}  // namespace

TEST_CASE("float16 agrees with double precision for every bit pattern and rounds to nearest even") {
  check_format<float16>({5, 10});
}

TEST_CASE("bfloat16 agrees with double precision for every bit pattern and rounds to nearest even") {
  check_format<bfloat16>({8, 7});
}

TEST_CASE("dtypes have names that parse back, sizes and kinds") {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(parse_dtype(to_string(dtype)) == dtype);
    CHECK(parse_dtype(short_name(dtype)) == dtype);
    visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
      CHECK(dtype_of<T> == dtype);
      CHECK(size_of(dtype) == sizeof(T));
      CHECK(is_integral(dtype) == (std::is_integral_v<T> && !std::is_same_v<T, bool>));
    });
    CHECK(is_floating(dtype) == (i < 4));
  }
  CHECK_THAT(error_of([] { parse_dtype("float8"); }, ErrorCode::invalid_argument),
             Catch::Contains("'float8' is not a dtype; choose float32"));
}

TEST_CASE("reduce types have names that parse back") {
  for (int i = 0; i < kNumReduceTypes; ++i) {
    const auto type = static_cast<ReduceType>(i);
    CHECK(parse_reduce_type(to_string(type)) == type);
  }
  error_of([] { parse_reduce_type("total"); }, ErrorCode::invalid_argument);
}

}  // namespace dtype_test
