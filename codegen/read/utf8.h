// Finds bytes that are not UTF-8.
#pragma once

#include <string_view>

namespace shardgen {

/// The offset of the first byte that does not belong to valid UTF-8 or is a NUL, or npos.
size_t find_invalid_utf8(std::string_view bytes);

}  // namespace shardgen
