#include "shard/api/local_map.h"

#include <algorithm>

#include "shard/api/layout.h"
#include "shard/autograd/autograd.h"
#include "shard/autograd/boundary.h"
#include "shard/autograd/leaf.h"
#include "shard/autograd/record.h"
#include "shard/core/error.h"
#include "shard/ops/creation.h"
#include "shard/ops/math.h"

namespace shard {
namespace {

using autograd::BackwardContext;
using autograd::Recording;
using autograd::records;

constexpr OpDef kLocalMap = {.name = "local_map", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

/// The layout of gradients of local shards in `spec`, in which each rank has what its own shard
/// contributes to the global gradient. All ranks of a replicated axis use the same shard, so its
/// gradient is the sum over them. Each contribution to a pending sum gets the whole gradient.
const DistSpec* dual(const DistSpec* spec, std::string_view name) {
  Layout layout = spec->layout();
  for (int axis = 0; axis < spec->mesh()->rank(); ++axis) {
    const auto a = static_cast<size_t>(axis);
    if (layout.partial[a] && *layout.partial[a] != ReduceType::sum) {
      fail(ErrorCode::autograd,
           "[{}] layout {} has a pending reduction other than sum, which has no gradient; reduce it outside of the "
           "function, or pass detach() of the inputs",
           name, spec->text());
    }
    if (layout.partial[a]) layout.partial[a] = std::nullopt;
    else if (layout.dim_of(axis) < 0) layout.partial[a] = ReduceType::sum;
  }
  return DistSpec::make(layout);
}

/// Local shards of a tensor and of its gradient differ in dtype where one of them is a pending sum
/// of 16-bit floats.
Tensor in_dtype(const Tensor& shard, DType dtype) { return shard.dtype() == dtype ? shard : cast(shard, dtype); }

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
             "[{}] argument 'input {}' is a plain tensor ({}) that requires a gradient, but without a layout the "
             "gradients of the ranks cannot be combined; make it distributed with distribute(tensor, spec), or pass "
             "detach() of it",
             name_, i, input.get().describe());
      }
      const DistSpec* const spec = wanted && (i >= in_specs.size() || in_specs[i] == nullptr) ? spec_of(input)
                                   : wanted                                                   ? in_specs[i]
                                                                                              : nullptr;
      inputs_.push_back({wanted ? dual(spec, name_) : nullptr, wanted ? input.meta() : Meta()});
    }
    for (const DistSpec* spec : out_specs) outputs_.push_back(spec == nullptr ? nullptr : dual(spec, name_));
  }

  /// Calls the function on local shards that are leaves of their own.
  std::vector<Tensor> run(const call::LocalFunction& function, std::span<const Tensor> shards) {
    std::vector<autograd::OwnedEdge> edges;
    for (const Tensor& shard : shards) {
      Tensor& leaf = leaves_.emplace_back(shard.detach());
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
           "[{}] the function uses a tensor that requires a gradient and is not one of its inputs; pass it as an "
           "input, or use detach() of it",
           name_);
    }
    std::vector<Tensor> detached;
    for (const Tensor& result : results_) detached.push_back(result.defined() ? result.detach() : result);
    return detached;
  }

  void operator()(BackwardContext& context) const {
    const std::vector<Tensor> gradients = context.grads_or_none(0);
    std::vector<Tensor> outputs, given, leaves;
    for (size_t o = 0; o < gradients.size(); ++o) {
      if (!gradients[o].defined()) continue;
      // Collective over all ranks of the world, including those without a shard.
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
      Tensor shard;
      if (!leaves_.empty())
        shard = found[next].defined() ? found[next]
                                      : zeros(IntArray(leaves_[i].dims()), leaves_[i].dtype(), leaves_[i].device());
      ++next;
      if (shard.defined()) shard = in_dtype(shard, shard_dtype(inputs_[i].meta.dtype, inputs_[i].dual->layout()));
      results[i] = from_local(shard, inputs_[i].dual, inputs_[i].meta.dims, inputs_[i].meta.dtype);
    }
    context.set_grads<0>(std::move(results));
  }

 private:
  struct Input {
    const DistSpec* dual;  // null if no gradient is wanted
    Meta meta;
  };
  std::string_view name_;
  std::vector<Input> inputs_;
  std::vector<const DistSpec*> outputs_;
  std::vector<Tensor> leaves_, results_;
};

}  // namespace

std::vector<Tensor> detail::run_local_map(const call::LocalFunction& function, std::span<const Tensor> inputs,
                                          std::span<const DistSpec* const> in_specs,
                                          std::span<const DistSpec* const> out_specs, const LocalMapOptions& options) {
  const std::vector<Tensor> all(inputs.begin(), inputs.end());
  if (!records(all)) return call::run_local_map(function, inputs, in_specs, out_specs, options);
  LocalGradient gradient(all, in_specs, out_specs, options.name);
  Recording record(CallSite(), kLocalMap, all);
  const call::LocalFunction recorded = [&](std::span<const Tensor> shards) { return gradient.run(function, shards); };
  std::vector<Tensor> results = call::run_local_map(recorded, inputs, in_specs, out_specs, options);
  return record.link_all(std::move(gradient), std::move(results));
}

}  // namespace shard
