// Unified diffs, as `diff -u` prints them and `patch` accepts them.
#pragma once

#include <string>
#include <string_view>

namespace shardgen {

/// The change from `before` to `after`, with three lines of context; empty when they are equal. Its
/// head names `old_name` and `new_name`: "/dev/null" for a file that is created or removed.
std::string unified_diff(const std::string& old_name, const std::string& new_name, std::string_view before,
                         std::string_view after);

}  // namespace shardgen
