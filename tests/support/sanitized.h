// Whether a sanitizer is compiled in, for tests of memory that sanitizers manage in their own way.
#pragma once

#include <iostream>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHARD_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARD_TEST_SANITIZED 1
#endif

namespace shard::test {

#ifdef SHARD_TEST_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Says why a test of kept or counted memory does nothing, in the words by which ctest counts it as skipped.
inline void skip_kept_memory() { std::cout << "skipped: sanitizers allocate in their own way" << std::endl; }

}  // namespace shard::test
