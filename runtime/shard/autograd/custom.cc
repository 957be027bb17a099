// Steps with gradients that programs define: user-defined functions, and scopes that are
// recomputed.
#include <map>
#include <mutex>

#include "shard/autograd/autograd.h"
#include "shard/autograd/record.h"
#include "shard/autograd/rerun.h"
#include "shard/core/error.h"
#include "shard/ops/math.h"

namespace shard::autograd {
namespace {

constexpr OpDef kRecompute = {.name = "recompute", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

/// The OpDef of a user-defined function. It is never freed, because recorded steps refer to it.
const OpDef& facts_of(const std::string& name) {
  static std::mutex lock;
  static std::map<std::string, OpDef> all;
  const std::scoped_lock guard(lock);
  const auto [place, added] = all.try_emplace(name);
  // Never written again: steps of other threads may read it.
  if (added) place->second = {.name = place->first, .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};
  return place->second;
}

/// The results of a function, without the history that they may have there.
std::vector<Tensor> without_history(std::string_view name, std::vector<Tensor> outputs) {
  std::vector<Tensor> own;
  for (const Tensor& output : outputs) {
    if (!output.defined()) {
      fail(ErrorCode::undefined,
           "[{}] the function has returned an undefined tensor as output {}; return a tensor (it may be empty)", name,
           own.size());
    }
    own.push_back(output.detach());
  }
  return own;
}

/// Copies outputs to buffers of their own where these are shared: a view of another tensor would
/// get a history of its own beside that of its base.
std::vector<Tensor> on_own_buffers(std::vector<Tensor> outputs) {
  const NoGrad off;
  for (Tensor& output : outputs) {
    if (!output.get().value.storage()->unique()) output = assign(output);
  }
  return outputs;
}

}  // namespace
}  // namespace shard::autograd

namespace shard {

using namespace autograd;

std::vector<Tensor> apply(const CustomFunction& function, const std::vector<Tensor>& inputs, CallSite site) {
  if (!function.forward || !function.backward) {
    fail(ErrorCode::invalid_argument, "[{}] a custom function needs both forward and backward", function.name);
  }
  const auto forward = [&] {
    const NoGrad off;
    return on_own_buffers(without_history(function.name, function.forward(inputs)));
  };
  if (!autograd::records(inputs)) return forward();
  Recording record(site, facts_of(function.name), inputs);
  std::vector<SavedTensor> saved_inputs = record.save(inputs), saved_outputs;
  std::vector<Tensor> outputs = forward();
  for (const Tensor& output : outputs) saved_outputs.push_back(SavedTensor::output_of(output));
  auto backward = [f = function.backward, saved_inputs = std::move(saved_inputs),
                   saved_outputs = std::move(saved_outputs)](BackwardContext& context) {
    const std::string_view name = context.node().op().name;
    std::vector<Tensor> gradients =
        f(autograd::inputs(saved_inputs, context, 0), context.outputs(saved_outputs, 0), context.grads(0));
    if (gradients.size() != saved_inputs.size()) {
      fail(ErrorCode::autograd,
           "[{}] backward has returned {} gradients for {} inputs; return one for each, an undefined tensor where "
           "there is none",
           name, gradients.size(), saved_inputs.size());
    }
    context.set_grads<0>(std::move(gradients));
  };
  return record.link_all(std::move(backward), std::move(outputs));
}

std::vector<Tensor> recompute(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                              const std::vector<Tensor>& inputs, CallSite site) {
  if (!function)
    fail(ErrorCode::invalid_argument, "[recompute] the function is a null function; pass one that takes the inputs");
  if (!grad_enabled()) return function(inputs);
  Rerun backward(function, inputs);
  std::vector<Tensor> outputs;
  std::vector<OwnedEdge> outside;
  {
    // Recorded, if only to find out which tensors the function takes from outside beside its
    // inputs.
    Boundary boundary(Boundary::Reads::kept);
    boundary.leave_out(inputs);
    outputs = function(inputs);
    for (const Tensor& output : outputs) {
      if (output.defined()) edge_of(output);  // the output may be a tensor from outside
    }
    outputs = without_history("recompute",
                              std::move(outputs));  // this frees the steps of the function, and their residuals
    outside = boundary.outside();
    backward.set_reads(boundary.take_reads(outputs));
  }
  outputs = on_own_buffers(std::move(outputs));
  if (outside.empty()) return outputs;
  return Recording(site, kRecompute, std::move(outside)).link_all(std::move(backward), std::move(outputs));
}

}  // namespace shard
