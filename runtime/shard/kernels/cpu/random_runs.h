// What kernels that draw random numbers share: the key of a call, and the runs of a local shard whose global indices
// are consecutive.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shard/core/op_context.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {

/// The key of a call with the attribute `seed`, of which 0 means the key that the generator drew.
inline RandomKey key_of(int seed, RandomKey drawn) {
  return seed != 0 ? RandomKey{static_cast<uint64_t>(seed), 0} : drawn;
}

/// Calls body(first local element, first global element, n) for each contiguous run of the local
/// shard `dims` of `box`. Trailing dims that the shard has whole are one run.
template <class Body>
void for_runs(const Box& box, const Dims& dims, const Body& body) {
  int lead = std::max(dims.rank() - 1, 0);  // the dim along which a run may be a part
  int64_t inner = 1;                        // elements of the dims after it
  while (lead > 0 && box.begin[lead] == 0 && dims[lead] == box.global[lead]) inner *= dims[lead--];
  const int64_t width = dims.rank() == 0 ? 1 : dims[lead] * inner, rows = width == 0 ? 0 : dims.numel(0, lead);
  // One run per row and chunk: enough work for a thread, without assigning a long row to a single thread.
  constexpr int64_t kRun = 4096;
  const int64_t chunks = (width + kRun - 1) / kRun;
  parallel_for(rows * chunks, 16 * std::min(width, kRun), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % chunks * kRun;
      int64_t row = i / chunks;
      const int64_t local = row * width + column;
      int64_t global = dims.rank() == 0 ? 0 : box.begin[lead] * inner + column;
      int64_t stride = dims.rank() == 0 ? 1 : box.global[lead] * inner;
      for (int d = lead - 1; d >= 0; --d) {
        global += (box.begin[d] + row % dims[d]) * stride;
        stride *= box.global[d];
        row /= dims[d];
      }
      body(local, global, std::min(kRun, width - column));
    }
  });
}

}  // namespace shard::cpu
