// 16-bit floating-point storage types; arithmetic is done in float. Other number formats would be
// added here.
#pragma once

#include <bit>
#include <cstdint>

namespace shard {

/// IEEE 754 binary16. Conversion from float rounds to nearest even.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  explicit float16(float value) : bits(from_float(value)) {}
  operator float() const { return to_float(bits); }

 private:
  static uint16_t from_float(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (word >> 16) & 0x8000u;
    const uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {                                               // subnormal: let the FPU round
      const float scaled = std::bit_cast<float>(magnitude) + std::bit_cast<float>(0x3f000000u);
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  static float to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
  }
};

/// The upper half of a binary32. Conversion from float rounds to nearest even.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) : bits(from_float(value)) {}
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

 private:
  static uint16_t from_float(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((word >> 16) | 0x40u);  // NaN stays NaN
    return static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
};

}  // namespace shard
