// Tensors from outside that a capture uses. Symbolic tensors replace them during the capture, and
// they are restored when it ends.
#pragma once

#include "shard/autograd/leaf.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/world.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// This rank's local shard of a value of the program; storage-less.
inline DenseTensor local_shard_of(const Type& type, MemoryMeter& meter) {
  if (type.spec == nullptr) return DenseTensor::allocate(type.device, type.meta, &meter);
  const auto at = type.spec->mesh()->coordinate(current_rank().id());
  if (!at) return absent_value(type.meta);
  return DenseTensor::allocate(type.device, shard_meta(type.meta, *type.spec, *at), &meter);
}

/// The nearest source of a copy, direct or through other copies, for which `known` is true; null if
/// there is none.
template <class Known>
const Storage* nearest_source(const Storage& copy, const Known& known) {
  for (const Detachment* link = copy.detachment(); link != nullptr; link = link->source->detachment()) {
    if (known(link->source.get())) return link->source.get();
  }
  return nullptr;
}

/// A tensor from outside that has become a value of the program, and its state from before, which
/// restore() brings back.
class Adopted {
 public:
  Adopted(TensorImpl& impl, DenseTensor symbolic, ValueId value)
      : impl_(&impl), real_(impl.value), symbolic_(symbolic), type_(type_of(impl)), value_(value) {
    impl.retain();
    handle_ = Tensor(Ref<TensorImpl>::adopt(&impl));
    GradState& state = impl.grad;
    history_ = {state.requires_grad,   state.output,       std::move(state.node),
                std::move(state.root), state.root_version, state.views};
    // Whatever the tensor was computed from: in the program, computations start at it.
    state.output = 0;
    state.root_version = 0;
    state.views = {};
    impl.value = std::move(symbolic);
  }

  void restore() {
    GradState& state = impl_->grad;
    state.requires_grad = history_.requires_grad;
    state.output = history_.output;
    state.node = std::move(history_.node);
    state.root = std::move(history_.root);
    state.root_version = history_.root_version;
    state.views = history_.views;
    impl_->value = std::move(real_);
    if (type_.spec == nullptr) return;
    auto& dist = static_cast<DistTensorImpl&>(*impl_);
    dist.global = type_.meta;
    dist.spec = type_.spec;
  }

  const Tensor& handle() const { return handle_; }
  const Type& type() const { return type_; }
  ValueId value() const { return value_; }
  bool was_leaf() const { return !history_.node; }
  bool was_view() const { return static_cast<bool>(history_.root); }
  const Storage* real() const { return real_.storage().get(); }
  bool required_grad() const { return history_.requires_grad; }
  /// True if it is still the same tensor as before, except for its elements.
  bool same_place() const { return impl_->value.storage() == symbolic_.storage() && type_of(*impl_) == type_; }

 private:
  struct History {
    bool requires_grad;
    uint32_t output;
    Ref<GradNode> node;
    Ref<TensorImpl> root;
    uint64_t root_version;
    ViewChain views;
  };
  TensorImpl* impl_;
  Tensor handle_;
  DenseTensor real_, symbolic_;
  Type type_;
  ValueId value_;
  History history_;
};

/// A tensor that the captured function created with its elements. It is a constant of the program,
/// and each run has a copy.
class Constant {
 public:
  /// `copy` replaces it in the program.
  Constant(TensorImpl& impl, DenseTensor copy) : real_(impl.value), copy_(copy) {
    impl.retain();
    handle_ = Tensor(Ref<TensorImpl>::adopt(&impl));
    impl.value = std::move(copy);
  }

  void restore() {
    TensorImpl& impl = handle_.get();
    written_ = !(impl.value.storage() == copy_.storage()) || copy_.storage()->version() != 0;
    impl.value = std::move(real_);
    impl.grad.node = nullptr;
    if (autograd::LeafExtra* const extra = autograd::extra_or_null(handle_)) extra->gradient = {};
  }

  /// Call this after restore(). True if the function has stored the tensor somewhere and has
  /// changed it: the stored tensor would lack those changes.
  bool escapes() const { return !handle_.impl()->unique() && (written_ || handle_.get().grad.requires_grad); }
  const Tensor& handle() const { return handle_; }

 private:
  Tensor handle_;
  DenseTensor real_, copy_;
  bool written_ = false;
};

}  // namespace shard::program
