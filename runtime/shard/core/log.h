// The sink of the library's messages. It is empty until a program sets one: the library itself
// never prints.
#pragma once

#include <functional>
#include <string_view>

#include "shard/core/export.h"

namespace shard {

/// Sets the function that receives every message; an empty one drops them. Thread safe.
SHARD_API void set_log_sink(std::function<void(std::string_view)> sink);
SHARD_API void log_message(std::string_view message);

}  // namespace shard
