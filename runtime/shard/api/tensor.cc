// The members of Tensor (core/tensor.h) that record for autograd or query it.
#include "shard/core/tensor.h"

#include "shard/autograd/autograd.h"
#include "shard/autograd/leaf.h"
#include "shard/autograd/record.h"
#include "shard/core/error.h"
#include "shard/core/tracer.h"

namespace shard {
namespace {

using autograd::BackwardContext;
using autograd::LeafExtra;
using autograd::Recording;

constexpr OpDef kTo = {.name = "to", .inputs = slots<"tensor">, .outputs = slots<"out">};

}  // namespace

Tensor Tensor::to(Device device) const {
  if (device == this->device() || !autograd::records(*this)) return to_device(*this, device);
  Recording record(CallSite(), kTo, *this);
  auto backward = [from = this->device()](BackwardContext& context) { context.set_grads<0>(context.grad(0).to(from)); };
  return record.link<0>(std::move(backward), to_device(*this, device));
}

bool Tensor::requires_grad() const {
  // requires_grad() brings the history of a view up to date. A view that was created while nothing
  // is recorded has no history, whatever its base.
  return autograd::requires_grad(*this) && get().grad.requires_grad && is_floating(dtype());
}

bool Tensor::is_leaf() const { return !requires_grad() || !get().grad.node; }

const Tensor& Tensor::set_requires_grad(bool wanted) const {
  GradState& state = get().grad;
  // The capture adopts the tensor first, so that it can restore its state.
  if (Tracer* const tracer = Tracer::current()) tracer->adopt(get());
  if (!is_leaf()) {
    fail(ErrorCode::autograd,
         "[set_requires_grad] {} was computed from leaves that require a gradient; it can be set only on a leaf; use "
         "detach() of it",
         get().describe());
  }
  if (wanted && !is_floating(dtype())) {
    fail(ErrorCode::autograd,
         "[set_requires_grad] {} has no floating-point dtype, so it has no gradient; cast it first", get().describe());
  }
  state.requires_grad = wanted;
  state.node = nullptr;  // the history belongs to a value of another dtype
  state.root = nullptr;  // it is a leaf of its own, whatever shares its buffer
  return *this;
}

Tensor Tensor::grad() const {
  if (Tracer* const tracer = Tracer::current()) tracer->adopt_gradient(*this);
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
         is_dist() ? "distributed like it" : "a plain tensor like it", gradient.get().describe(),
         is_dist() ? "distribute(gradient, spec)" : "full_tensor(gradient)");
  }
  if (Tracer* const tracer = Tracer::current()) {
    tracer->adopt(gradient);
    tracer->adopt_gradient(*this);
  }
  if (!gradient.defined() && autograd::extra_or_null(*this) == nullptr) return;
  autograd::extra_of(*this).gradient = gradient;
}

Tensor Tensor::detach() const {
  if (Tracer* const tracer = Tracer::current()) tracer->adopt(get());
  return Tensor(get().alias());
}

void Tensor::backward() const { shard::backward({*this}); }

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  shard::backward({*this}, {gradient}, {.retain_graph = retain_graph});
}

}  // namespace shard
