// The public functions that move tensors between layouts, and in and out of them, recorded for autograd. What they do is in the layers
// below, in namespace unrecorded.
#include "autograd/leaf.h"
#include "autograd/record.h"
#include "call/unrecorded.h"
#include "dist/unrecorded.h"
#include "reshard/unrecorded.h"

namespace shard {
namespace {

using autograd::gradient_layout;
using autograd::Pass;
using autograd::Recording;
using autograd::records;

constexpr OpDef kReshard = {.name = "reshard", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kReshardList = {.name = "reshard", .inputs = slots<"tensors[]">, .outputs = slots<"out[]">};
constexpr OpDef kDistribute = {.name = "distribute", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kFull = {.name = "full", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kLocal = {.name = "local", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kFromLocal = {.name = "from_local", .inputs = slots<"piece">, .outputs = slots<"out">};
constexpr OpDef kLocalMap = {.name = "local_map", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

const DistSpec* gradient_layout_of(const Tensor& tensor) { return gradient_layout(dist_impl(tensor).spec); }

/// The gradient of a move is moved back by the same planner.
template <class Move>
Tensor record_move(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap, Move&& move) {
  if (dist_impl(tensor, "reshard").spec == spec || !records(tensor)) return move();
  Recording record(kReshard, tensor);
  auto backward = [from = gradient_layout_of(tensor), memory_cap](Pass& pass) { pass.give<0>(reshard(pass.grad(0), from, memory_cap)); };
  return record.link<0>(std::move(backward), move());
}

}  // namespace

Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return record_move(tensor, spec, memory_cap, [&] { return unrecorded::reshard(tensor, spec, memory_cap); });
}

Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return record_move(tensor, spec, memory_cap, [&] { return unrecorded::reshard_async(tensor, spec, memory_cap); });
}

std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs, int64_t memory_cap) {
  if (!records(tensors)) return unrecorded::reshard(tensors, specs, memory_cap);
  std::vector<const DistSpec*> from;
  for (const Tensor& tensor : tensors) from.push_back(gradient_layout_of(tensor));
  Recording record(kReshardList, tensors);
  std::vector<Tensor> moved = unrecorded::reshard(tensors, specs, memory_cap);
  for (size_t i = 0; i < moved.size(); ++i) {
    // One that stays has a history already.
    if (moved[i].impl() == tensors[i].impl()) moved[i] = Tensor(moved[i].impl()->alias());
  }
  auto backward = [from, memory_cap](Pass& pass) { pass.give<0>(reshard(pass.grads(0), from, memory_cap)); };
  return record.link<0>(std::move(backward), std::move(moved));
}

Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source) {
  if (!records(tensor)) return unrecorded::distribute(tensor, spec, source);
  Recording record(kDistribute, tensor);
  return record.link<0>([](Pass& pass) { pass.give<0>(full(pass.grad(0))); }, unrecorded::distribute(tensor, spec, source));
}

Tensor full(const Tensor& tensor) {
  if (!records(tensor)) return unrecorded::full(tensor);
  Recording record(kFull, tensor);
  // Every rank has the whole value and computes the same from it, so every rank has the same gradient.
  auto backward = [from = gradient_layout_of(tensor)](Pass& pass) { pass.give<0>(distribute(pass.grad(0), from, same_on_all)); };
  return record.link<0>(std::move(backward), unrecorded::full(tensor));
}

// A piece has no layout, so nothing tells which gradients of the ranks belong together.
Tensor local(const Tensor& tensor) { return autograd::unlinked(kLocal, unrecorded::local(tensor), tensor); }

Tensor from_local(const Tensor& piece, const DistSpec* spec, const Dims& global, DType dtype) {
  return autograd::unlinked(kFromLocal, unrecorded::from_local(piece, spec, global, dtype), piece);
}

std::vector<Tensor> detail::run_local_map(const LocalFunction& function, std::span<const Tensor> inputs, std::span<const DistSpec* const> in_specs,
                                          std::span<const DistSpec* const> out_specs, const LocalMapOptions& options) {
  std::vector<Tensor> results = unrecorded::run_local_map(function, inputs, in_specs, out_specs, options);
  return autograd::unlinked(kLocalMap, std::move(results), std::vector<Tensor>(inputs.begin(), inputs.end()));
}

}  // namespace shard
