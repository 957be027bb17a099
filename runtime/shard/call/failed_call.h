// Reports to the world that a distributed call, or an op of a captured program, has failed on this
// rank.
#pragma once

#include <exception>
#include <string_view>

#include "shard/dist/world.h"

namespace shard::call {

/// Reports to the world that call number `call` of `rank` failed with `error`. The call may not
/// fail on other ranks. `where` is appended to the text. Does nothing for errors that have failed
/// the world already, or for a call made by the function of another call.
void report_failed_call(Rank& rank, uint64_t call, const std::exception_ptr& error, std::string_view where);

}  // namespace shard::call
