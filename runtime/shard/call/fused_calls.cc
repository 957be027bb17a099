#include "shard/call/fused_calls.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "shard/call/fused_loop.h"
#include "shard/core/thread_state.h"

namespace shard::call {
namespace {

constexpr int64_t kBlock = 8192;  // elements of a block

/// The launcher of the calls of this thread.
class Launching {
 public:
  explicit Launching(Launcher& launcher) : before_(std::exchange(this_thread.launcher, &launcher)) {}
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;
  ~Launching() { this_thread.launcher = before_; }

 private:
  Launcher* before_;
};

/// Gives the tensors of steps, whose results have no bytes yet, real buffers.
class Buffers {
 public:
  explicit Buffers(const Binder& binder) {
    for (const std::unique_ptr<BoundStep>& step : binder.steps) tensors_.push_back(step->tensors());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (const BoundTensor& each : tensors_[i]) last_[each.tensor->storage().get()] = i;
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      for (const BoundTensor& each : tensors_[i]) {
        if (each.written && !each.tensor->has_data() && !real(*each.tensor)) make(i, *each.tensor);
      }
    }
    for (DenseTensor* const tensor : binder.tensors) {
      if (tensor->defined() && real(*tensor)) *tensor = of(*tensor);
    }
  }

  DenseTensor of(const DenseTensor& tensor) const { return {real_.at(tensor.storage().get()), tensor.meta(), 0}; }
  std::vector<FusedTensor> fused(size_t step) const {
    std::vector<FusedTensor> all;
    for (const BoundTensor& each : tensors_[step]) all.push_back({each, each.tensor->storage().get()});
    return all;
  }

 private:
  bool real(const DenseTensor& tensor) const { return real_.contains(tensor.storage().get()); }

  /// The result of step i takes the place of an argument that is a result itself, and is not read any more.
  void make(size_t i, const DenseTensor& result) {
    const auto ends_here = [&](const BoundTensor& each) {
      return !each.written && real(*each.tensor) && last_.at(each.tensor->storage().get()) == i &&
             each.tensor->meta() == result.meta();
    };
    const auto& all = tensors_[i];
    const auto found = i == 0 ? all.end() : std::find_if(all.begin(), all.end(), ends_here);
    const Storage* const key = result.storage().get();
    if (found == all.end()) real_[key] = Storage::allocate(result.device(), result.storage()->bytes());
    else real_[key] = real_.at(found->tensor->storage().get());
    kept_.push_back(result.storage());
  }

  std::vector<std::vector<BoundTensor>> tensors_;    // by step
  std::unordered_map<const Storage*, size_t> last_;  // the last step that uses it
  std::unordered_map<const Storage*, Ref<Storage>> real_;
  std::vector<Ref<Storage>> kept_;  // the keys of real_
};

}  // namespace

bool detail::may_fuse(const Tensor& tensor) {
  return !tensor.defined() || (!tensor.is_dist() && tensor.get().value.device() == kCpu);
}
bool detail::launches() { return this_thread.launcher != nullptr; }

Tensor run_fused(const std::function<Tensor()>& product, const std::function<Tensor(const Tensor&)>& calls,
                 LoopKind kind) {
  MemoryMeter meter;
  Binder binder(meter);
  const Tensor result = [&] {
    const Launching scope(binder);
    return calls(product ? product() : Tensor());
  }();
  const Buffers buffers(binder);
  for (size_t i = 0; i < binder.steps.size();) {
    FusedLoop loop(kBlock);
    BoundStep& first = *binder.steps[i];
    const bool leads = i == 0 && product;
    const bool fits = !leads                         ? loop.add(first, buffers.fused(i))
                      : kind == LoopKind::arithmetic ? loop.follow(first, buffers.fused(i))
                                                     : false;
    const size_t begin = i++;
    while (fits && i < binder.steps.size() && loop.add(*binder.steps[i], buffers.fused(i))) ++i;
    if (i - begin == 1) first.run();
    else loop.make()->run();
  }
  return Tensor(buffers.of(result.get().value));
}

}  // namespace shard::call
