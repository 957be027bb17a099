// Makes text of the input safe to show in a message: one line, valid UTF-8, nothing invisible, not endless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardgen {

/// Control characters and bytes that are not UTF-8 become escapes. Characters beyond ASCII keep their looks and get their
/// number, because a Cyrillic 'о' looks like a Latin one: "о(U+043E)". The middle of a long text is left out.
std::string printable(std::string_view text);
/// A whole text in one line of valid UTF-8: as it is where it is that, so that the name of a file can be clicked, else with escapes.
std::string one_line(const std::string& text);
/// Characters that have no looks of their own, or turn the direction of the text around them.
bool is_invisible(uint32_t code);

}  // namespace shardgen
