// Calls that are prepared once and run many times: where a context has a Binder, a dense function runs no kernel, and leaves it there with
// all its arguments.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/op_context.h"

namespace shard::call {

/// A kernel with its arguments, or a copy.
class BoundStep {
 public:
  BoundStep() = default;
  BoundStep(const BoundStep&) = delete;
  BoundStep& operator=(const BoundStep&) = delete;
  virtual ~BoundStep() = default;
  virtual void run() = 0;
};

/// Collects the steps of one call. Its tensors are on storages without bytes: whoever runs the steps puts others in their place.
class Binder {
 public:
  /// Runs `kernel` with these arguments. References and lists of tensors are copied.
  template <class... P>
  void add(void (*kernel)(const OpContext&, P...), const OpContext& ctx, std::type_identity_t<P>... args);
  /// Copies the bytes of `from`.
  void copy(const DenseTensor& to, const DenseTensor& from);

  std::vector<std::unique_ptr<BoundStep>> steps;
  std::vector<DenseTensor*> tensors;  // of all steps
  MemoryMeter meter;                  // of the storages without bytes
  const RandomKey* key = nullptr;     // where steps find the key of a random op when they run
};

namespace detail {

/// What a step keeps for a parameter of type P: a value of its own.
template <class P>
struct Kept {
  std::remove_cvref_t<P> value;
  Kept(Binder&, P given) : value(given) {}
  std::remove_cvref_t<P>& get() { return value; }
  void register_in(Binder&) {}
};
template <>
struct Kept<const char*> {
  const char* value;
  Kept(Binder&, const char* given) : value(given) {}
  const char* get() { return value; }
  void register_in(Binder&) {}
};
template <class P>
  requires std::is_same_v<std::remove_cvref_t<P>, DenseTensor>
struct Kept<P> {
  DenseTensor value;
  Kept(Binder&, const DenseTensor& given) : value(given) {}
  DenseTensor& get() { return value; }
  void register_in(Binder& binder) { binder.tensors.push_back(&value); }
};
template <class T>
  requires std::is_same_v<std::remove_const_t<T>, DenseTensor>
struct Kept<std::span<T>> {
  std::vector<DenseTensor> values;
  Kept(Binder&, std::span<T> given) : values(given.begin(), given.end()) {}
  std::span<T> get() { return values; }
  void register_in(Binder& binder) {
    for (DenseTensor& value : values) binder.tensors.push_back(&value);
  }
};
template <>
struct Kept<RandomKey> {
  const RandomKey* key;
  Kept(Binder& binder, RandomKey) : key(binder.key) {}
  RandomKey get() { return *key; }
  void register_in(Binder&) {}
};

template <class... P>
class BoundKernel final : public BoundStep {
 public:
  BoundKernel(Binder& binder, void (*kernel)(const OpContext&, P...), const OpContext& ctx, P... args)
      : kernel_(kernel), ctx_{ctx.op, ctx.local}, args_(Kept<P>(binder, args)...) {
    std::apply([&](auto&... each) { (each.register_in(binder), ...); }, args_);
  }
  void run() override {
    std::apply([&](auto&... each) { kernel_(ctx_, each.get()...); }, args_);
  }

 private:
  void (*kernel_)(const OpContext&, P...);
  OpContext ctx_;
  std::tuple<Kept<P>...> args_;
};

}  // namespace detail

template <class... P>
void Binder::add(void (*kernel)(const OpContext&, P...), const OpContext& ctx, std::type_identity_t<P>... args) {
  steps.push_back(std::make_unique<detail::BoundKernel<P...>>(*this, kernel, ctx, args...));
}

}  // namespace shard::call
