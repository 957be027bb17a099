// UTF-8 as defined by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#include "diag/utf8.h"

namespace shardgen {
namespace {

/// The length of the sequence that starts with `lead`, and the smallest code point that needs it.
struct Shape {
  size_t length;
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

Utf8Char decode_utf8(std::string_view bytes) {
  if (bytes.empty()) return {};
  const Shape shape = shape_of(static_cast<unsigned char>(bytes[0]));
  if (shape.length == 0 || shape.length > bytes.size()) return {};
  uint32_t code = shape.bits;
  for (size_t k = 1; k < shape.length; ++k) {
    const unsigned char next = static_cast<unsigned char>(bytes[k]);
    if ((next & 0xC0) != 0x80) return {};
    code = (code << 6) | (next & 0x3Fu);
  }
  if (code < shape.least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, shape.length};
}

size_t find_invalid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char next = decode_utf8(bytes.substr(i));
    if (next.length == 0 || next.code == 0) return i;
    i += next.length;
  }
  return std::string_view::npos;
}

}  // namespace shardgen
