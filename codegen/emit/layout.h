// Lays out generated text: no line is longer than 100 columns where it can be broken.
#pragma once

#include <string>
#include <string_view>

namespace shardgen {

inline constexpr size_t kColumns = 100;

/// The text with long lines broken at commas and, in comments, at spaces. Runs of empty lines
/// become one.
std::string lay_out(std::string_view text);

}  // namespace shardgen
