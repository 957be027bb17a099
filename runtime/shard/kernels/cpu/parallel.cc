// The only file that uses TBB: kernels include only parallel.h, so that they compile fast.
#include "shard/kernels/cpu/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>

namespace shard::cpu {
namespace detail {

void run_on_threads(int64_t count, int64_t grain, void (*call)(const void* body, int64_t begin, int64_t end),
                    const void* body) {
  // TBB itself orders the tasks between fork and join. This atomic repeats the order for the thread
  // sanitizer, which does not see into TBB, so that it can distinguish a real race in a kernel from
  // this hand-over.
  std::atomic<int> hand_over{0};
  hand_over.store(1, std::memory_order_release);
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count, static_cast<size_t>(grain)),
                    [&, call, body](const tbb::blocked_range<int64_t>& range) {
                      (void)hand_over.load(std::memory_order_acquire);
                      call(body, range.begin(), range.end());
                      hand_over.fetch_add(1, std::memory_order_acq_rel);
                    });
  (void)hand_over.load(std::memory_order_acquire);
}

}  // namespace detail

void run_each(int64_t count, const std::function<void(int64_t)>& body) {
  detail::run_on_threads(
      count, 1,
      [](const void* erased, int64_t begin, int64_t end) {
        const auto& each = *static_cast<const std::function<void(int64_t)>*>(erased);
        for (int64_t i = begin; i < end; ++i) tbb::this_task_arena::isolate([&] { each(i); });
      },
      &body);
}

int threads() {
  const size_t allowed = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  return static_cast<int>(std::min(allowed, static_cast<size_t>(tbb::this_task_arena::max_concurrency())));
}

}  // namespace shard::cpu
