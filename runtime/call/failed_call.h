// What a rank tells its world when a distributed call, or an op of a captured program, has failed on it.
#pragma once

#include <exception>
#include <string_view>

#include "dist/world.h"

namespace shard::call {

/// Tells the world that call number `call` of `rank` failed with `error`, which it may not do on other ranks; `where` is added to the text. Does
/// nothing for what has failed the world already, nor for a call that the function of another one makes.
void report_failed_call(Rank& rank, uint64_t call, const std::exception_ptr& error, std::string_view where);

}  // namespace shard::call
