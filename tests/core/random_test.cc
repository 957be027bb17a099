// Random bits against published numbers.
#include <catch2/catch.hpp>

#include "shard/core/random.h"

namespace random_test {

using namespace shard;

TEST_CASE("philox gives the known answers of Random123 for Philox 4x32-10") {
  using Words = std::array<uint32_t, 4>;
  // kat_vectors of Random123: counter words, key words, result. The counter is the block, then the offset of the
  // key; the key is the seed.
  const auto words = [](const Words& counter, uint32_t key0, uint32_t key1) {
    const auto joined = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
    return philox({.seed = joined(key0, key1), .offset = joined(counter[2], counter[3])},
                  joined(counter[0], counter[1]));
  };
  CHECK(words({0, 0, 0, 0}, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("an element has the word of its place in its block, and a draw moves the offset by one") {
  const RandomKey key{.seed = 7, .offset = 3};
  for (uint64_t element = 0; element < 9; ++element)
    CHECK(random_word(key, element) == philox(key, element / 4)[element % 4]);
  Generator generator(7);
  for (uint64_t draw = 0; draw < 3; ++draw) CHECK(generator.draw().offset == draw);
  CHECK(generator.state().offset == 3);
}

}  // namespace random_test
