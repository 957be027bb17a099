// Unified diffs, as `diff -u` prints them and `patch` takes them.
#pragma once

#include <string>
#include <string_view>

namespace shardgen {

/// The change from `before` to `after`, with three lines of context; empty when they are equal. `old_name` and `new_name` stand
/// in its head: "/dev/null" for a file that is made or removed.
std::string unified_diff(const std::string& old_name, const std::string& new_name, std::string_view before,
                         std::string_view after);

}  // namespace shardgen
