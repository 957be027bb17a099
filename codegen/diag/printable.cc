// Escapes and truncates text.
#include "diag/printable.h"

#include <fmt/format.h>

#include <algorithm>

#include "diag/utf8.h"

namespace shardgen {
namespace {

constexpr size_t kLongest = 400;
constexpr size_t kHead = 240;
constexpr size_t kTail = 120;

std::string show_ascii(char c) {
  switch (c) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
  }
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02X}", byte) : std::string(1, c);
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string shortened(const std::string& text) {
  if (text.size() <= kLongest) return text;
  size_t head = kHead, tail = text.size() - kTail;
  while (is_continuation(text[head])) --head;
  while (is_continuation(text[tail])) ++tail;
  return text.substr(0, head) + " [...] " + text.substr(tail);
}

}  // namespace

bool is_invisible(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF ||
         (code >= 0xE0000 && code <= 0xE0FFF);
}

namespace {

std::string escaped(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      shown += show_ascii(text[i++]);
      continue;
    }
    const Utf8Char next = decode_utf8(text.substr(i));
    if (next.length == 0) {
      shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[i++]));
      continue;
    }
    if (!is_invisible(next.code)) shown += text.substr(i, next.length);
    shown += fmt::format("(U+{:04X})", next.code);
    i += next.length;
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) { return shortened(escaped(text)); }

std::string one_line(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7F; });
  return plain && find_invalid_utf8(text) == std::string::npos ? text : escaped(text);
}

}  // namespace shardgen
