#include "shard/api/layout.h"

#include "shard/autograd/leaf.h"
#include "shard/autograd/record.h"
#include "shard/core/error.h"

namespace shard {
namespace {

using autograd::BackwardContext;
using autograd::gradient_layout;
using autograd::Recording;
using autograd::records;

constexpr OpDef kReshard = {.name = "reshard", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kReshardList = {.name = "reshard", .inputs = slots<"tensors[]">, .outputs = slots<"out[]">};
constexpr OpDef kDistribute = {.name = "distribute", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kFullTensor = {.name = "full_tensor", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kLocal = {.name = "local", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kFromLocal = {.name = "from_local", .inputs = slots<"shard">, .outputs = slots<"out">};

const DistSpec* gradient_layout_of(const Tensor& tensor) { return gradient_layout(dist_impl(tensor).spec); }

/// The gradient of a reshard is resharded back by the same planner.
template <class Move>
Tensor record_move(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap, Move&& move) {
  if (dist_impl(tensor, "reshard").spec == spec || !records(tensor)) return move();
  Recording record(CallSite(), kReshard, tensor);
  auto backward = [from = gradient_layout_of(tensor), memory_cap](BackwardContext& context) {
    context.set_grads<0>(reshard(context.grad(0), from, memory_cap));
  };
  return record.link<0>(std::move(backward), move());
}

template <class Move>
std::vector<Tensor> record_moves(const std::vector<Tensor>& tensors, int64_t memory_cap, Move&& move) {
  if (!records(tensors)) return move();
  std::vector<const DistSpec*> from;
  for (const Tensor& tensor : tensors) from.push_back(gradient_layout_of(tensor));
  Recording record(CallSite(), kReshardList, tensors);
  std::vector<Tensor> moved = move();
  for (size_t i = 0; i < moved.size(); ++i) {
    // A tensor that stays in its layout has a history already.
    if (moved[i].impl() == tensors[i].impl()) moved[i] = Tensor(moved[i].impl()->alias());
  }
  auto backward = [from, memory_cap](BackwardContext& context) {
    context.set_grads<0>(reshard(context.grads(0), from, memory_cap));
  };
  return record.link<0>(std::move(backward), std::move(moved));
}

}  // namespace

Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return record_move(tensor, spec, memory_cap, [&] { return dist::reshard(tensor, spec, memory_cap); });
}

Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return record_move(tensor, spec, memory_cap, [&] { return dist::reshard_async(tensor, spec, memory_cap); });
}

std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                            int64_t memory_cap) {
  return record_moves(tensors, memory_cap, [&] { return dist::reshard(tensors, specs, memory_cap); });
}

std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                  int64_t memory_cap) {
  return record_moves(tensors, memory_cap, [&] { return dist::reshard_async(tensors, specs, memory_cap); });
}

Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source) {
  if (!records(tensor)) return dist::distribute(tensor, spec, source);
  Recording record(CallSite(), kDistribute, tensor);
  return record.link<0>([](BackwardContext& context) { context.set_grads<0>(full_tensor(context.grad(0))); },
                        dist::distribute(tensor, spec, source));
}

Tensor full_tensor(const Tensor& tensor) {
  if (!records(tensor)) return dist::full_tensor(tensor);
  Recording record(CallSite(), kFullTensor, tensor);
  // Every rank has the full value and computes the same from it, so every rank has the same
  // gradient.
  auto backward = [from = gradient_layout_of(tensor)](BackwardContext& context) {
    context.set_grads<0>(distribute(context.grad(0), from, same_on_all));
  };
  return record.link<0>(std::move(backward), dist::full_tensor(tensor));
}

// A local shard has no layout, so it is unknown which gradients of the ranks belong together.
Tensor local(const Tensor& tensor) { return autograd::unlinked(kLocal, dist::local(tensor), tensor); }

Tensor from_local(const Tensor& shard, const DistSpec* spec, const Dims& global, DType dtype) {
  return autograd::unlinked(kFromLocal, dist::from_local(shard, spec, global, dtype), shard);
}

}  // namespace shard
