#include "autograd/autograd.h"

#include <algorithm>
#include <atomic>

#include "autograd/engine.h"
#include "autograd/record.h"
#include "core/recorder.h"
#include "dist/dist_tensor.h"
#include "ops/creation.h"
#include "reshard/execute.h"

namespace shard {

using autograd::Engine;
using autograd::LeafExtra;
using autograd::OwnedEdge;
using autograd::Pass;
using autograd::SavedTensor;

bool Tensor::requires_grad() const {
  // This brings a view's history up to date. A tensor that was made where nothing is recorded has
  // no history, whatever its base.
  return autograd::requires_grad(*this) && get().grad.requires_grad && is_floating(dtype());
}

bool Tensor::is_leaf() const { return !requires_grad() || !get().grad.node; }

const Tensor& Tensor::set_requires_grad(bool wanted) const {
  GradState& state = get().grad;
  // so that its state is restored after the capture
  if (Recorder* const recorder = Recorder::current()) recorder->adopt(get());
  if (!is_leaf()) {
    fail(ErrorCode::autograd,
         "[set_requires_grad] {} was computed from leaves that require a gradient; only a leaf can be told: take "
         "detach() of it first",
         get().describe());
  }
  if (wanted && !is_floating(dtype())) {
    fail(ErrorCode::autograd,
         "[set_requires_grad] {} has no floating-point dtype, so it has no gradient; cast it first", get().describe());
  }
  state.requires_grad = wanted;
  state.node = nullptr;  // of a value of another dtype
  state.root = nullptr;  // an independent leaf, whatever shares its buffer
  return *this;
}

Tensor Tensor::grad() const {
  if (Recorder* const recorder = Recorder::current()) recorder->adopt_gradient(*this);
  const LeafExtra* const extra = autograd::extra_or_null(*this);
  return extra == nullptr ? Tensor() : extra->gradient;
}

void Tensor::set_grad(const Tensor& gradient) const {
  if (gradient.defined() && !(gradient.dims() == dims())) {
    fail(ErrorCode::shape_mismatch, "[set_grad] the gradient of {} must have its shape, not {}", get().describe(),
         to_string(gradient.dims()));
  }
  if (gradient.defined() && gradient.dtype() != dtype()) {
    fail(ErrorCode::dtype_mismatch, "[set_grad] the gradient of {} must have its dtype, not {}", get().describe(),
         to_string(gradient.dtype()));
  }
  if (gradient.defined() && gradient.is_dist() != is_dist()) {
    fail(ErrorCode::layout, "[set_grad] the gradient of {} must be {}, not {}; use {}", get().describe(),
         is_dist() ? "distributed as it is" : "a plain tensor as it is", gradient.get().describe(),
         is_dist() ? "distribute(gradient, spec)" : "full(gradient)");
  }
  if (Recorder* const recorder = Recorder::current()) {
    recorder->adopt(gradient);
    recorder->adopt_gradient(*this);
  }
  if (!gradient.defined() && autograd::extra_or_null(*this) == nullptr) return;
  autograd::extra_of(*this).gradient = gradient;
}

Tensor Tensor::detach() const {
  if (Recorder* const recorder = Recorder::current()) recorder->adopt(get());
  return Tensor(get().alias());
}

void Tensor::backward() const { shard::backward({*this}); }

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  shard::backward({*this}, {gradient}, {.retain_graph = retain_graph});
}

namespace {

/// The gradient of an output for which none was given.
Tensor one_for(const Tensor& output) {
  if (output.numel() != 1) {
    fail(ErrorCode::autograd,
         "[backward] {} has {} elements; give grad_outputs, a tensor of its shape, or reduce it (sum) to one element "
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
    fail(ErrorCode::invalid_argument, "[backward] there are {} grad_outputs for {} outputs; give one for each, or none",
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
      fail(ErrorCode::autograd, "[grad] no output depends on input {} ({}); leave it out, or give allow_unused", i,
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
    fail(ErrorCode::autograd, "[set_grad_layout] {} is no leaf, and keeps no gradient", leaf.get().describe());
  autograd::extra_of(leaf).layout = layout;
}

uint64_t add_hook(const Tensor& tensor, GradHook hook) {
  if (!hook)
    fail(ErrorCode::invalid_argument, "[add_hook] the hook is a null function; give one that takes the gradient");
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
