// The public functions that reshard tensors, and convert them from and to local ones, recorded for
// autograd. Lower layers implement them, in namespace unrecorded.
#include <algorithm>

#include "autograd/autograd.h"
#include "autograd/boundary.h"
#include "autograd/leaf.h"
#include "autograd/record.h"
#include "call/unrecorded.h"
#include "core/error.h"
#include "core/unrecorded.h"
#include "dist/unrecorded.h"
#include "ops/creation.h"
#include "ops/math.h"
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
constexpr OpDef kTo = {.name = "to", .inputs = slots<"tensor">, .outputs = slots<"out">};
constexpr OpDef kLocalMap = {.name = "local_map", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

const DistSpec* gradient_layout_of(const Tensor& tensor) { return gradient_layout(dist_impl(tensor).spec); }

/// The gradient of a reshard is resharded back, by the same planner.
template <class Move>
Tensor record_move(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap, Move&& move) {
  if (dist_impl(tensor, "reshard").spec == spec || !records(tensor)) return move();
  Recording record(CallSite(), kReshard, tensor);
  auto backward = [from = gradient_layout_of(tensor), memory_cap](Pass& pass) {
    pass.give<0>(reshard(pass.grad(0), from, memory_cap));
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
    // A tensor that was not resharded already has a history.
    if (moved[i].impl() == tensors[i].impl()) moved[i] = Tensor(moved[i].impl()->alias());
  }
  auto backward = [from, memory_cap](Pass& pass) { pass.give<0>(reshard(pass.grads(0), from, memory_cap)); };
  return record.link<0>(std::move(backward), std::move(moved));
}

/// The layout of gradients of local shards in `spec`, in which each rank holds the contribution of
/// its own shard to the whole gradient. A replica is used on every rank of the axis, so its
/// gradient is the sum over them; and each contribution to a pending sum gets the whole gradient.
const DistSpec* dual(const DistSpec* spec, std::string_view name) {
  Layout layout = spec->layout();
  for (int axis = 0; axis < spec->mesh()->rank(); ++axis) {
    const auto a = static_cast<size_t>(axis);
    if (layout.partial[a] && *layout.partial[a] != ReduceType::sum) {
      fail(ErrorCode::autograd,
           "[{}] layout {} has a pending reduction that is no sum, through which there are no gradients; reduce it "
           "outside of the function, or "
           "give detach() of the inputs",
           name, spec->text());
    }
    if (layout.partial[a]) layout.partial[a] = std::nullopt;
    else if (layout.dim_of(axis) < 0) layout.partial[a] = ReduceType::sum;
  }
  return DistSpec::make(layout);
}

/// Local shards of a tensor and of its gradient differ in dtype where one of them is a pending sum
/// of 16-bit floats.
Tensor in_dtype(const Tensor& piece, DType dtype) { return piece.dtype() == dtype ? piece : cast(piece, dtype); }

/// Differentiates what a function did with the local shards of this rank.
class LocalGradient {
 public:
  LocalGradient(const std::vector<Tensor>& inputs, std::span<const DistSpec* const> in_specs,
                std::span<const DistSpec* const> out_specs, const char* name)
      : name_(name) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& input = inputs[i];
      const bool wanted = input.defined() && autograd::requires_grad(input);
      if (wanted && !input.is_dist()) {
        fail(ErrorCode::autograd,
             "[{}] argument 'input {}' is a plain tensor ({}) that requires a gradient, and nothing tells how those of "
             "the ranks belong "
             "together; make it distributed with distribute(tensor, spec), or give detach() of it",
             name_, i, input.get().describe());
      }
      const DistSpec* const spec = wanted && (i >= in_specs.size() || in_specs[i] == nullptr) ? spec_of(input)
                                   : wanted                                                   ? in_specs[i]
                                                                                              : nullptr;
      inputs_.push_back({wanted ? dual(spec, name_) : nullptr, wanted ? input.meta() : Meta()});
    }
    for (const DistSpec* spec : out_specs) outputs_.push_back(spec == nullptr ? nullptr : dual(spec, name_));
  }

  /// Calls the function with local shards that are leaves of their own.
  std::vector<Tensor> run(const detail::LocalFunction& function, std::span<const Tensor> pieces) {
    std::vector<autograd::OwnedEdge> edges;
    for (const Tensor& piece : pieces) {
      Tensor& leaf = leaves_.emplace_back(piece.detach());
      if (inputs_[leaves_.size() - 1].dual == nullptr) continue;
      leaf.set_requires_grad(true);
      edges.push_back(autograd::edge_of(leaf));
    }
    autograd::Boundary boundary;
    results_ = function(leaves_);
    for (const autograd::OwnedEdge& edge : boundary.outside()) {
      if (std::any_of(edges.begin(), edges.end(),
                      [&](const autograd::OwnedEdge& own) { return own.node == edge.node; }))
        continue;
      fail(ErrorCode::autograd,
           "[{}] the function uses a tensor that requires a gradient and is none of its inputs; hand it in as an "
           "input, or use detach() of it",
           name_);
    }
    std::vector<Tensor> detached;
    for (const Tensor& result : results_) detached.push_back(result.defined() ? result.detach() : result);
    return detached;
  }

  void operator()(Pass& pass) const {
    const std::vector<Tensor> gradients = pass.grads_or_none(0);
    std::vector<Tensor> outputs, given, leaves;
    for (size_t o = 0; o < gradients.size(); ++o) {
      if (!gradients[o].defined()) continue;
      // on all ranks of the world, including those without a shard
      const Tensor moved = reshard(gradients[o], outputs_[o]);
      if (o >= results_.size() || !results_[o].requires_grad()) continue;
      outputs.push_back(results_[o]);
      given.push_back(in_dtype(local(moved), results_[o].dtype()));
    }
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (inputs_[i].dual != nullptr) leaves.push_back(leaves_[i]);
    }
    std::vector<Tensor> found(leaves.size());
    if (!outputs.empty())
      found =
          grad(outputs, leaves, given, {.retain_graph = true, .create_graph = grad_enabled()}, /*allow_unused=*/true);
    std::vector<Tensor> results(inputs_.size());
    for (size_t i = 0, next = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].dual == nullptr) continue;
      // A rank that does not use an input contributes zeros, because others may use it. A rank
      // without a shard contributes nothing.
      Tensor piece;
      if (!leaves_.empty())
        piece = found[next].defined() ? found[next]
                                      : zeros(IntArray(leaves_[i].dims()), leaves_[i].dtype(), leaves_[i].device());
      ++next;
      if (piece.defined()) piece = in_dtype(piece, shard_dtype(inputs_[i].meta.dtype, inputs_[i].dual->layout()));
      results[i] = from_local(piece, inputs_[i].dual, inputs_[i].meta.dims, inputs_[i].meta.dtype);
    }
    pass.give<0>(std::move(results));
  }

 private:
  struct Input {
    const DistSpec* dual;  // null where no gradient is wanted
    Meta meta;
  };
  std::string_view name_;
  std::vector<Input> inputs_;
  std::vector<const DistSpec*> outputs_;
  std::vector<Tensor> leaves_, results_;
};

}  // namespace

Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return record_move(tensor, spec, memory_cap, [&] { return unrecorded::reshard(tensor, spec, memory_cap); });
}

Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return record_move(tensor, spec, memory_cap, [&] { return unrecorded::reshard_async(tensor, spec, memory_cap); });
}

std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                            int64_t memory_cap) {
  return record_moves(tensors, memory_cap, [&] { return unrecorded::reshard(tensors, specs, memory_cap); });
}

std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                  int64_t memory_cap) {
  return record_moves(tensors, memory_cap, [&] { return unrecorded::reshard_async(tensors, specs, memory_cap); });
}

Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source) {
  if (!records(tensor)) return unrecorded::distribute(tensor, spec, source);
  Recording record(CallSite(), kDistribute, tensor);
  return record.link<0>([](Pass& pass) { pass.give<0>(full(pass.grad(0))); },
                        unrecorded::distribute(tensor, spec, source));
}

Tensor full(const Tensor& tensor) {
  if (!records(tensor)) return unrecorded::full(tensor);
  Recording record(CallSite(), kFull, tensor);
  // Every rank has the whole value and computes the same from it, so every rank has the same
  // gradient.
  auto backward = [from = gradient_layout_of(tensor)](Pass& pass) {
    pass.give<0>(distribute(pass.grad(0), from, same_on_all));
  };
  return record.link<0>(std::move(backward), unrecorded::full(tensor));
}

// A local shard has no layout, so it is unknown which gradients of the ranks belong together.
Tensor local(const Tensor& tensor) { return autograd::unlinked(kLocal, unrecorded::local(tensor), tensor); }

Tensor from_local(const Tensor& piece, const DistSpec* spec, const Dims& global, DType dtype) {
  return autograd::unlinked(kFromLocal, unrecorded::from_local(piece, spec, global, dtype), piece);
}

Tensor Tensor::to(Device device) const {
  if (device == this->device() || !records(*this)) return unrecorded::to(*this, device);
  Recording record(CallSite(), kTo, *this);
  auto backward = [from = this->device()](Pass& pass) { pass.give<0>(pass.grad(0).to(from)); };
  return record.link<0>(std::move(backward), unrecorded::to(*this, device));
}

std::vector<Tensor> detail::run_local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                                          std::span<const DistSpec* const> in_specs,
                                          std::span<const DistSpec* const> out_specs, const LocalMapOptions& options) {
  const std::vector<Tensor> all(inputs.begin(), inputs.end());
  if (!records(all)) return unrecorded::run_local_map(function, inputs, in_specs, out_specs, options);
  LocalGradient gradient(all, in_specs, out_specs, options.name);
  Recording record(CallSite(), kLocalMap, all);
  const LocalFunction recorded = [&](std::span<const Tensor> pieces) { return gradient.run(function, pieces); };
  std::vector<Tensor> results = unrecorded::run_local_map(recorded, inputs, in_specs, out_specs, options);
  return record.link_all(std::move(gradient), std::move(results));
}

}  // namespace shard
