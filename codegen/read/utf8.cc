// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
#include "read/utf8.h"

#include <cstdint>

namespace shardgen {
namespace {

/// The length of the sequence that starts with `lead`, and the least code point that needs it.
struct Shape {
  int length;
  uint32_t least;
  uint32_t bits;
};

Shape shape_of(unsigned char lead) {
  if (lead < 0x80) return {1, 0, lead};
  if (lead >= 0xC0 && lead < 0xE0) return {2, 0x80, lead & 0x1Fu};
  if (lead >= 0xE0 && lead < 0xF0) return {3, 0x800, lead & 0x0Fu};
  if (lead >= 0xF0 && lead < 0xF8) return {4, 0x10000, lead & 0x07u};
  return {0, 0, 0};
}

}  // namespace

size_t find_invalid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Shape shape = shape_of(static_cast<unsigned char>(bytes[i]));
    if (shape.length == 0 || bytes[i] == '\0' || i + static_cast<size_t>(shape.length) > bytes.size()) return i;
    uint32_t code = shape.bits;
    for (int k = 1; k < shape.length; ++k) {
      const unsigned char next = static_cast<unsigned char>(bytes[i + static_cast<size_t>(k)]);
      if ((next & 0xC0) != 0x80) return i;
      code = (code << 6) | (next & 0x3Fu);
    }
    if (code < shape.least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return i;
    i += static_cast<size_t>(shape.length);
  }
  return std::string_view::npos;
}

}  // namespace shardgen
