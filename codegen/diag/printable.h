// Makes text of the input safe to show in a message: one line, valid UTF-8, no invisible
// characters, bounded length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardgen {

/// Escapes control characters and bytes that are not UTF-8. Characters beyond ASCII are kept and
/// followed by their number, because a Cyrillic 'о' looks like a Latin one: "о(U+043E)". The middle
/// of a long text is omitted.
std::string printable(std::string_view text);
/// The whole text in one line of valid UTF-8. Text that is already so is unchanged, so that the
/// name of a file is clickable; otherwise it is escaped.
std::string one_line(const std::string& text);
/// True for characters without a visible glyph, and for those that change the direction of the
/// surrounding text.
bool is_invisible(uint32_t code);

}  // namespace shardgen
