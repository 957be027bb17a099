// SHARD_API marks what libshard.so exports. Everything else has hidden visibility; tests and tools, which call internal functions, link the
// objects of the library.
#pragma once

#define SHARD_API __attribute__((visibility("default")))
