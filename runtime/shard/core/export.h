// SHARD_API marks what libshard.so exports. Everything else has hidden visibility, unless the library is built for its own tests
// (SHARD_EXPORT_INTERNALS).
#pragma once

#define SHARD_API __attribute__((visibility("default")))
