// Counter-based random bits: Philox 4x32-10 (Salmon et al., SC 2011), keyed by the global index of an element.
#pragma once

#include <array>
#include <cstdint>

namespace shard {

/// Selects a stream of random numbers: equal keys produce equal numbers for equal element indices.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t offset = 0;  // counts the draws of a generator
};

/// Generates keys. A draw advances the offset by one.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : key_{seed, 0} {}
  void set_seed(uint64_t seed) { key_ = {seed, 0}; }
  RandomKey draw() {
    const RandomKey key = key_;
    ++key_.offset;
    return key;
  }
  RandomKey state() const { return key_; }
  void set_state(RandomKey state) { key_ = state; }

 private:
  RandomKey key_;
};

/// Four random words for the block of elements 4*block .. 4*block+3.
inline std::array<uint32_t, 4> philox(RandomKey key, uint64_t block) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                               static_cast<uint32_t>(key.offset), static_cast<uint32_t>(key.offset >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// The random word of the element with the global index `element`.
inline uint32_t random_word(RandomKey key, uint64_t element) { return philox(key, element >> 2)[element & 3]; }

/// Uniform in [0, 1) with 24 bits.
inline float uniform01(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace shard
