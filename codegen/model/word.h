// The characters of identifiers, which YAML, descriptions of runtimes and C++ have in common.
#pragma once

namespace shardgen {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; }

}  // namespace shardgen
