#include "shard/program/exec/fusion.h"

#include <algorithm>

#include "shard/kernels/cpu/parallel.h"

namespace shard::program {

using call::BoundStep;
using call::BoundTensor;
using call::Rows;

namespace {

class LoopStep final : public BoundStep {
 public:
  LoopStep(std::vector<BoundStep*> steps, int64_t rows, int64_t length, int64_t block)
      : steps_(std::move(steps)), rows_(rows), length_(length), block_(std::max<int64_t>(1, block / length)) {}

  void run() override {
    cpu::parallel_for(rows_, length_ * static_cast<int64_t>(steps_.size()), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += block_) {
        const Rows rows{first, std::min(block_, end - first), length_};
        for (BoundStep* const step : steps_) step->run_rows(rows);
      }
    });
  }

 private:
  std::vector<BoundStep*> steps_;
  int64_t rows_, length_;
  int64_t block_;  // rows
};

/// True if the elements of `x` are repeated along the first dims of `out`: without leading dims of
/// size 1, the dims of x are the last dims of out.
bool repeats(const Dims& x, const Dims& out) {
  int skip = 0;
  while (skip < x.rank() && x[skip] == 1) ++skip;
  const int rank = x.rank() - skip;
  if (rank > out.rank()) return false;
  for (int d = 0; d < rank; ++d) {
    if (x[skip + d] != out[out.rank() - rank + d]) return false;
  }
  return true;
}

}  // namespace

bool FusedLoop::fits(const std::vector<FusedTensor>& tensors, std::vector<Use>& uses, int64_t& count,
                     int64_t& length) const {
  const auto written = [](const FusedTensor& each) { return each.bound.written; };
  if (std::count_if(tensors.begin(), tensors.end(), written) != 1) return false;
  const DenseTensor& out = *std::find_if(tensors.begin(), tensors.end(), written)->bound.tensor;
  count = out.numel();
  if (count < block_ || out.device() != kCpu || (count_ != 0 && count != count_)) return false;
  length = length_;
  for (const FusedTensor& each : tensors) {
    const DenseTensor& tensor = *each.bound.tensor;
    if (tensor.device() != kCpu || !repeats(tensor.dims(), out.dims())) return false;
    const bool cut = tensor.numel() == count;
    if (!cut && tensor.numel() != 1) {
      if (length != 1 && length != tensor.numel()) return false;
      length = tensor.numel();
    }
    uses.push_back({each.buffer, tensor.offset(), tensor.dtype(), cut, each.bound.written});
  }
  if (length == 0 || count / length < 2) return false;
  // One use writes bytes that the other uses, and the two do not access them in the same rows.
  const auto disagree = [](const Use& a, const Use& b) {
    if (a.buffer != b.buffer || !(a.written || b.written)) return false;
    return !a.cut || !b.cut || a.offset != b.offset || a.dtype != b.dtype;
  };
  const auto clashes = [&](const Use& use) {
    const auto with = [&](const Use& other) { return disagree(use, other); };
    return std::any_of(uses_.begin(), uses_.end(), with) || std::any_of(uses.begin(), uses.end(), with);
  };
  return std::none_of(uses.begin(), uses.end(), clashes);
}

bool FusedLoop::add(BoundStep& step, const std::vector<FusedTensor>& tensors) {
  std::vector<Use> uses;
  int64_t count = 0, length = 1;
  if (tensors.empty() || !fits(tensors, uses, count, length)) return false;
  count_ = count;
  length_ = length;
  for (size_t i = 0; i < tensors.size(); ++i) *tensors[i].bound.cut = uses[i].cut;
  uses_.insert(uses_.end(), uses.begin(), uses.end());
  steps_.push_back(&step);
  return true;
}

std::unique_ptr<BoundStep> FusedLoop::make() const {
  return std::make_unique<LoopStep>(steps_, count_ / length_, length_, block_);
}

}  // namespace shard::program
