#include "shard/call/fused_loop.h"

#include <algorithm>

#include "shard/kernels/cpu/parallel.h"

namespace shard::call {
namespace {

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

bool is_written(const FusedTensor& each) { return each.bound.written; }

}  // namespace

void LoopStep::run_rows_from(int64_t begin, int64_t end) {
  cpu::parallel_for(end - begin, length_ * static_cast<int64_t>(steps_.size()), [&](int64_t from, int64_t to) {
    for (int64_t first = begin + from; first < begin + to; first += block_) {
      const Rows rows{first, std::min(block_, begin + to - first), length_};
      for (BoundStep* const step : steps_) step->run_rows(rows);
    }
  });
}

void EpilogueStep::run() {
  const cpu::OfferedEpilogue offer(epilogue_);
  kernel_.run();
  if (!offer.taken()) loop_->run();
}

bool FusedLoop::fits(const std::vector<FusedTensor>& tensors, std::vector<Use>& uses, int64_t& count,
                     int64_t& length) const {
  if (std::count_if(tensors.begin(), tensors.end(), is_written) != 1) return false;
  const DenseTensor& out = *std::find_if(tensors.begin(), tensors.end(), is_written)->bound.tensor;
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
  if (length == 0 || count / length < 2 || line_ % length != 0) return false;
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

bool FusedLoop::follow(BoundStep& kernel, const std::vector<FusedTensor>& tensors) {
  if (std::count_if(tensors.begin(), tensors.end(), is_written) != 1) return false;
  const DenseTensor& out = *std::find_if(tensors.begin(), tensors.end(), is_written)->bound.tensor;
  if (out.device() != kCpu || out.dims().rank() == 0 || out.numel() < block_ || !gains_by_epilogue(out.dtype()))
    return false;
  count_ = out.numel();
  line_ = out.dims()[out.dims().rank() - 1];
  // All of the arguments is read until the last line is complete.
  for (const FusedTensor& each : tensors) {
    const DenseTensor& tensor = *each.bound.tensor;
    uses_.push_back({each.buffer, tensor.offset(), tensor.dtype(), each.bound.written, each.bound.written});
  }
  kernel_ = &kernel;
  return true;
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
  auto loop = std::make_unique<LoopStep>(steps_, count_ / length_, length_, std::max<int64_t>(1, block_ / length_));
  if (kernel_ == nullptr) return loop;
  return std::make_unique<EpilogueStep>(*kernel_, std::move(loop));
}

}  // namespace shard::call
