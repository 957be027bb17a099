// A stable hash: the same on every machine and in every run.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardgen {

/// FNV-1a, 64 bits. `seed` chains several byte ranges.
constexpr uint64_t hash_bytes(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325u) {
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed;
}

}  // namespace shardgen
