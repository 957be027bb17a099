#include "shard/core/box_copy.h"

#include <cstring>

namespace shard {
namespace {

/// One loop of a copy: its number of iterations, and the strides in bytes on both sides.
struct Loop {
  int64_t turns;
  int64_t to_step;
  int64_t from_step;
};

template <size_t kRun>
void copy_runs(char* to, const char* from, const Loop& loop) {
  for (int64_t i = 0; i < loop.turns; ++i) std::memcpy(to + i * loop.to_step, from + i * loop.from_step, kRun);
}

/// The innermost loop. Short runs have code of their own, because a call of memcpy per element
/// would dominate.
void copy_runs(char* to, const char* from, const Loop& loop, size_t run) {
  switch (run) {
    case 1: return copy_runs<1>(to, from, loop);
    case 2: return copy_runs<2>(to, from, loop);
    case 4: return copy_runs<4>(to, from, loop);
    case 8: return copy_runs<8>(to, from, loop);
    case 16: return copy_runs<16>(to, from, loop);
    default:
      for (int64_t i = 0; i < loop.turns; ++i) std::memcpy(to + i * loop.to_step, from + i * loop.from_step, run);
  }
}

}  // namespace

int64_t offset_of(const Dims& dims, const Dims& index) {
  int64_t offset = 0;
  for (int d = 0; d < dims.rank(); ++d) offset = offset * dims[d] + index[d];
  return offset;
}

bool is_contiguous(const Dims& dims, const Dims& extent) {
  // After the first dim of which more than one index is taken, all dims must be whole.
  int d = 0;
  while (d < dims.rank() && extent[d] == 1) ++d;
  for (++d; d < dims.rank(); ++d) {
    if (extent[d] != dims[d]) return false;
  }
  return true;
}

void copy_box(const BoxView& to, const BoxView& from, const Dims& extent, size_t element) {
  if (extent.numel() == 0) return;
  // From the innermost dim outwards: dims that are contiguous on both sides are merged into one
  // run, each other dim becomes a loop.
  std::array<Loop, kMaxRank> loops;
  int depth = 0;
  int64_t run = static_cast<int64_t>(element);
  int64_t to_step = run;
  int64_t from_step = run;
  for (int d = extent.rank() - 1; d >= 0; --d) {
    if (extent[d] != 1) {
      if (depth == 0 && to_step == run && from_step == run) {
        run *= extent[d];
      } else if (depth > 0 && to_step == loops[depth - 1].to_step * loops[depth - 1].turns &&
                 from_step == loops[depth - 1].from_step * loops[depth - 1].turns) {
        loops[depth - 1].turns *= extent[d];
      } else {
        loops[depth++] = {extent[d], to_step, from_step};
      }
    }
    to_step *= to.dims[d];
    from_step *= from.dims[d];
  }
  char* to_at = to.data + offset_of(to.dims, to.begin) * static_cast<int64_t>(element);
  const char* from_at = from.data + offset_of(from.dims, from.begin) * static_cast<int64_t>(element);
  if (depth == 0) {
    std::memcpy(to_at, from_at, static_cast<size_t>(run));
    return;
  }
  std::array<int64_t, kMaxRank> turn{};
  while (true) {
    copy_runs(to_at, from_at, loops[0], static_cast<size_t>(run));
    int k = 1;
    for (; k < depth; ++k) {
      to_at += loops[k].to_step;
      from_at += loops[k].from_step;
      if (++turn[k] < loops[k].turns) break;
      to_at -= loops[k].to_step * loops[k].turns;
      from_at -= loops[k].from_step * loops[k].turns;
      turn[k] = 0;
    }
    if (k >= depth) return;
  }
}

}  // namespace shard
