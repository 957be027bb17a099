#include "shard/autograd/autograd.h"

#include <algorithm>
#include <atomic>

#include "shard/api/layout.h"
#include "shard/autograd/engine.h"
#include "shard/autograd/record.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/creation.h"

namespace shard {

using autograd::BackwardContext;
using autograd::Engine;
using autograd::LeafExtra;
using autograd::OwnedEdge;
using autograd::SavedTensor;

namespace {

/// The gradient of an output for which none was given.
Tensor one_for(const Tensor& output) {
  if (output.numel() != 1) {
    fail(ErrorCode::autograd,
         "[backward] {} has {} elements; pass grad_outputs, a tensor of its shape, or reduce it (sum) to one element "
         "first",
         output.get().describe(), output.numel());
  }
  const NoGrad off;
  const autograd::OutputInfo info = autograd::info_of(output.get());
  if (info.spec == nullptr) return ones(IntArray(info.meta.dims), info.meta.dtype, info.device);
  return ones(IntArray(info.meta.dims), autograd::gradient_layout(info.spec), info.meta.dtype, info.device);
}

void start_all(Engine& engine, const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs) {
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size()) {
    fail(ErrorCode::invalid_argument, "[backward] there are {} grad_outputs for {} outputs; pass one for each, or none",
         grad_outputs.size(), outputs.size());
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool given = !grad_outputs.empty() && grad_outputs[i].defined();
    engine.start(outputs[i], given ? grad_outputs[i] : one_for(outputs[i]));
  }
}

uint64_t next_hook() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void check_gradient_wanted(std::string_view function, const Tensor& tensor) {
  if (tensor.requires_grad()) return;
  fail(ErrorCode::autograd,
       "[{}] {} requires no gradient; call set_requires_grad(true) on it, or on what it is computed from", function,
       tensor.get().describe());
}

}  // namespace

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs,
              const BackwardOptions& options) {
  Engine engine(options);
  start_all(engine, outputs, grad_outputs);
  engine.run();
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, const BackwardOptions& options, bool allow_unused) {
  std::vector<OwnedEdge> edges;
  for (const Tensor& input : inputs) {
    check_gradient_wanted("grad", input);
    edges.push_back(autograd::edge_of(input));
    autograd::check_shape(input, edges.back().get()->output(edges.back().output));
  }
  Engine engine(options);
  start_all(engine, outputs, grad_outputs);
  engine.capture(edges);
  engine.run();
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensor gradient = engine.captured(i);
    if (!gradient.defined() && !allow_unused) {
      fail(ErrorCode::autograd, "[grad] no output depends on input {} ({}); remove it, or set allow_unused", i,
           inputs[i].get().describe());
    }
    if (gradient.defined() && gradient.is_dist()) {
      const GradMode mode(options.create_graph);
      gradient = reshard(gradient, autograd::gradient_layout(dist_impl(inputs[i]).spec));
    }
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

void set_grad_layout(const Tensor& leaf, GradLayout layout) {
  if (!leaf.is_leaf())
    fail(ErrorCode::autograd, "[set_grad_layout] {} is not a leaf, so it keeps no gradient", leaf.get().describe());
  autograd::extra_of(leaf).layout = layout;
}

uint64_t add_hook(const Tensor& tensor, GradHook hook) {
  if (!hook)
    fail(ErrorCode::invalid_argument, "[add_hook] the hook is a null function; pass one that takes the gradient");
  check_gradient_wanted("add_hook", tensor);
  const uint64_t id = next_hook();
  LeafExtra& extra = autograd::extra_of(tensor);
  if (tensor.is_leaf()) {
    extra.hooks.emplace_back(id, std::move(hook));
    return id;
  }
  const OwnedEdge edge = autograd::edge_of(tensor);
  const auto shared = std::make_shared<autograd::Hook>(std::move(hook));
  edge.get()->add_hook(edge.output, shared);
  extra.step_hooks.emplace_back(id, shared);
  return id;
}

void remove_hook(const Tensor& tensor, uint64_t hook) {
  LeafExtra* const extra = autograd::extra_or_null(tensor);
  if (extra == nullptr) return;
  std::erase_if(extra->hooks, [hook](const auto& each) { return each.first == hook; });
  const auto found = std::find_if(extra->step_hooks.begin(), extra->step_hooks.end(),
                                  [hook](const auto& each) { return each.first == hook; });
  if (found == extra->step_hooks.end()) return;
  if (const std::shared_ptr<autograd::Hook> function = found->second.lock()) *function = nullptr;
  extra->step_hooks.erase(found);
}

void retain_grad(const Tensor& tensor) {
  check_gradient_wanted("retain_grad", tensor);
  if (tensor.is_leaf()) return;
  LeafExtra& extra = autograd::extra_of(tensor);
  if (extra.retain) return;
  // The tensor owns its step, and the step owns the hook, so the hook must not own the tensor.
  extra.retain = std::make_shared<autograd::Hook>([&extra](const Tensor& gradient) {
    extra.gradient = gradient;
    return Tensor();
  });
  const GradState& state = tensor.get().grad;
  autograd::move_retained(tensor.get(), static_cast<autograd::Node*>(state.node.get()), state.output);
}

}  // namespace shard
