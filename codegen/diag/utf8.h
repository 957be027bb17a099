// Decodes bytes that may not be valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardgen {

struct Utf8Char {
  uint32_t code = 0;
  size_t length = 0;  // 0: the bytes do not start with a valid character
};

/// The character at the start of `bytes`.
Utf8Char decode_utf8(std::string_view bytes);
/// The offset of the first byte that does not belong to valid UTF-8 or is a NUL, or npos.
size_t find_invalid_utf8(std::string_view bytes);

}  // namespace shardgen
