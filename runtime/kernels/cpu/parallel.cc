// The one place that calls TBB: kernels see parallel.h only, so that they compile fast.
#include "kernels/cpu/parallel.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

namespace shard::cpu::detail {

void run_on_threads(int64_t count, int64_t grain, void (*call)(const void* body, int64_t begin, int64_t end), const void* body) {
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count, static_cast<size_t>(grain)),
                    [=](const tbb::blocked_range<int64_t>& range) { call(body, range.begin(), range.end()); });
}

}  // namespace shard::cpu::detail
