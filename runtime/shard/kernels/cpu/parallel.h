// Splits the work of a CPU kernel over threads; small work stays in the calling thread without
// touching TBB.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "shard/core/export.h"

namespace shard::cpu {

/// The number of elements of simple work that justifies a thread.
inline constexpr int64_t kGrain = 32768;

namespace detail {
/// Runs call(body, begin, end) on ranges of at least `grain` items that cover [0, count).
SHARD_API void run_on_threads(int64_t count, int64_t grain, void (*call)(const void* body, int64_t begin, int64_t end),
                              const void* body);
}  // namespace detail

/// Calls body(begin, end) on ranges that cover [0, count); `cost` is the work of one item in simple
/// elements. The assignment of ranges to threads is not fixed: a kernel must compute the same bits
/// for every split.
template <class Body>
void parallel_for(int64_t count, int64_t cost, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(cost, 1));
  if (count <= grain) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  detail::run_on_threads(
      count, grain,
      [](const void* erased, int64_t begin, int64_t end) { (*static_cast<const Body*>(erased))(begin, end); }, &body);
}

/// Calls body(i) for each i from 0 to before `count`, concurrently where threads are free. A thread
/// that waits in a loop of one of them does no work of another one. body must not throw: that would
/// abort the loops of the others halfway.
SHARD_API void run_each(int64_t count, const std::function<void(int64_t)>& body);

/// How many threads loops of the calling thread may use.
SHARD_API int threads();

}  // namespace shard::cpu
