// The one place that calls TBB: kernels see parallel.h only, so that they compile fast.
#include "kernels/cpu/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include <atomic>

namespace shard::cpu::detail {

void run_on_threads(int64_t count, int64_t grain, void (*call)(const void* body, int64_t begin, int64_t end), const void* body) {
  // TBB orders the tasks between fork and join itself; saying it again with an atomic lets a thread sanitizer, which does not
  // see into TBB, tell a real race in a kernel from this hand-over.
  std::atomic<int> hand_over{0};
  hand_over.store(1, std::memory_order_release);
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count, static_cast<size_t>(grain)), [&, call, body](const tbb::blocked_range<int64_t>& range) {
    (void)hand_over.load(std::memory_order_acquire);
    call(body, range.begin(), range.end());
    hand_over.fetch_add(1, std::memory_order_acq_rel);
  });
  (void)hand_over.load(std::memory_order_acquire);
}

}  // namespace shard::cpu::detail
