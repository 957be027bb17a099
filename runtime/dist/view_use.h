// Reads and writes of buffers that may be stale copies: what the ViewPolicy in force allows, and what errors advise
// under it.
#pragma once

#include <string_view>

#include "core/error.h"
#include "core/storage.h"
#include "dist/policies.h"

namespace shard {

/// As Storage::check_read, under `policy`: with ViewPolicy::temporary a stale copy parts from its source for good and
/// can be read. Errors name the policies that would allow the read, never the one in force.
void check_read(Storage& storage, ViewPolicy policy);
/// As Storage::check_write, under `policy`: with ViewPolicy::temporary a copy parts from its source for good and can be
/// written.
void check_write(Storage& storage, const char* op, ViewPolicy policy);
/// Ends the relation of a copy to its source: from now on it is a buffer of its own.
void part(Storage& storage);

/// What else would allow a use of `storage` that was refused with `code` under `policy`; empty for other errors.
std::string_view view_advice(const Storage& storage, ErrorCode code, ViewPolicy policy);

/// The policy of the rank that this thread runs; strict outside of worlds.
ViewPolicy view_policy();

}  // namespace shard
