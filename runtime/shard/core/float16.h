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
  [[gnu::always_inline]] explicit float16(float value) : bits(from_float(value)) {}
  [[gnu::always_inline]] operator float() const { return to_float(bits); }

 private:
  // Masks instead of conditions, which keep compilers from vectorising the loops of kernels around them.
  static constexpr uint32_t mask_if_below(uint32_t value, uint32_t bound) {
    return static_cast<uint32_t>(static_cast<int32_t>(value - bound) >> 31);
  }
  static constexpr uint32_t choose(uint32_t mask, uint32_t set, uint32_t clear) {
    return (set & mask) | (clear & ~mask);
  }

  [[gnu::always_inline]] static uint16_t from_float(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = word & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;  // rounded by the FPU
    const uint32_t quiet_nan = mask_if_below(0x7f800000u, magnitude) & 0x200u;
    const uint32_t finite = choose(mask_if_below(magnitude, 0x38800000u), subnormal, normal);
    const uint32_t half = choose(mask_if_below(magnitude, 0x477ff000u), finite, 0x7c00u | quiet_nan);
    return static_cast<uint16_t>((word >> 16 & 0x8000u) | half);
  }
  [[gnu::always_inline]] static float to_float(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t infinite =
        ~mask_if_below(magnitude, 0x7c00u) & 0x38000000u;  // infinity or NaN: the largest exponent
    const uint32_t normal = (magnitude << 13) + 0x38000000u + infinite;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>((magnitude << 13) + 0x38800000u) - 0x1p-14f);
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    return std::bit_cast<float>(sign | choose(mask_if_below(magnitude, 0x0400u), subnormal, normal));
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
