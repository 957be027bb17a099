// Numbers of those elements that a function chooses, in their order, for kernels whose number of results depends on data. They wait
// once for the device, to learn that number.
#pragma once

#include "shard/kernels/cuda/read_back.cuh"
#include "shard/kernels/cuda/scan.cuh"

namespace shard::cuda {

/// write(i, number, is_chosen) for each element i: how many chosen ones there are up to and with it, less one.
template <class Chosen, class Write>
struct NumberScan {
  using State = int64_t;
  static constexpr bool kExclusive = false;
  Chosen chosen;
  Write results;

  __device__ State nothing() const { return 0; }
  __device__ State element(int64_t i, int64_t) const { return chosen(i) ? 1 : 0; }
  __device__ State then(State before, State next) const { return before + next; }
  __device__ void write(int64_t i, State state) const { results(i, state - 1, chosen(i)); }
};

struct NoResults {
  __device__ void operator()(int64_t, int64_t, bool) const {}
};

/// A number that a kernel has left at `from`. Waits for the stream, and throws what kernels found in their data.
inline int64_t wait_for_number(const int64_t* from) {
  int64_t number = 0;
  read_back(&number, from, 1);
  return number;
}

/// Elements 0 to size - 1 of which `chosen(i)`, a function of the device, chooses some.
template <class Chosen>
class Compaction {
 public:
  Compaction(const OpContext& ctx, int64_t size, const Chosen& chosen)
      : chosen_(chosen), lines_(lines_of(size)), totals_(static_cast<size_t>(lines_.parts + 1) * sizeof(int64_t)) {
    if (size == 0) return;
    const NumberScan<Chosen, NoResults> scan{chosen, {}};
    check(cudaMemsetAsync(totals() + lines_.parts, 0, sizeof(int64_t), stream()), "cudaMemsetAsync");
    launch_scan<false>(ctx, scan, lines_, nullptr, totals());
    scan_totals(ctx, scan, 1, lines_.parts + 1, totals());
    count_ = wait_for_number(totals() + lines_.parts);
  }

  /// How many are chosen.
  int64_t count() const { return count_; }

  /// Calls results(i, number, is_chosen) on the device for each element, as NumberScan says.
  template <class Write>
  void write(const OpContext& ctx, const Write& results) const {
    if (lines_.size != 0)
      launch_scan<true>(ctx, NumberScan<Chosen, Write>{chosen_, results}, lines_, totals(), nullptr);
  }

 private:
  static Lines lines_of(int64_t size) {
    Lines lines{1, size, 1};
    if (size != 0) split_lines(lines);
    return lines;
  }
  int64_t* totals() const { return static_cast<int64_t*>(totals_.data()); }

  Chosen chosen_;
  Lines lines_;
  Scratch totals_;  // the number of chosen ones before each part, and of all
  int64_t count_ = 0;
};

}  // namespace shard::cuda
