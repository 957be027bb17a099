// Reads and writes of buffers that may be stale copies: what the ViewPolicy in force allows, and
// what errors advise.
#pragma once

#include <string_view>

#include "shard/core/error.h"
#include "shard/core/export.h"
#include "shard/core/storage.h"
#include "shard/dist/policies.h"

namespace shard {

/// As Storage::check_read, but with ViewPolicy::temporary a stale copy is separated from its source
/// permanently and can be read. Errors name the policies that would allow the read, never the one
/// in force.
SHARD_API void check_read(Storage& storage, ViewPolicy policy);
/// As Storage::check_write, but with ViewPolicy::temporary a copy is separated from its source
/// permanently and can be written.
SHARD_API void check_write(Storage& storage, const char* op, ViewPolicy policy);
/// Separates a copy from its source: from now on it is an independent buffer.
SHARD_API void separate(Storage& storage);

/// The policies that would allow a use of `storage` that was refused with `code` under `policy`;
/// empty for other errors.
SHARD_API std::string_view view_advice(const Storage& storage, ErrorCode code, ViewPolicy policy);

/// The policy of the rank that this thread runs; strict outside of worlds.
SHARD_API ViewPolicy view_policy();

}  // namespace shard
