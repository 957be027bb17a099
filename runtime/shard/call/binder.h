// Calls that are prepared once and run many times: the launcher that keeps their kernels and copies.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/op_context.h"

namespace shard::call {

/// A range of rows of elementwise work. Tensors with `cut` set are treated as matrices of `length`
/// columns, of which the kernel gets rows `first` to `first + count - 1`; as vectors if `length` is
/// 1. All other tensors are vectors that are repeated in each row.
struct Rows {
  int64_t first = 0;
  int64_t count = 0;
  int64_t length = 0;
};

/// A tensor of a step.
struct BoundTensor {
  DenseTensor* tensor;
  bool written;
  bool* cut;  // the caller sets it if rows of the tensor are taken
};

/// A kernel with its arguments, or a copy.
class SHARD_API BoundStep {
 public:
  BoundStep() = default;
  BoundStep(const BoundStep&) = delete;
  BoundStep& operator=(const BoundStep&) = delete;
  virtual ~BoundStep() = default;
  virtual void run() = 0;
  /// The tensors of a kernel that can run on a range of their rows; empty for other steps.
  virtual std::vector<BoundTensor> tensors() { return {}; }
  /// Runs the step on these rows alone. Several threads may do so at the same time.
  virtual void run_rows(const Rows&) {}
  /// All tensors of a kernel or copy that does the same work whenever its tensors have the same
  /// addresses. Empty for other steps: those that draw random numbers, reduce over ranks or
  /// reshard.
  virtual std::vector<const DenseTensor*> replayable_tensors() { return {}; }
};

/// Keeps the steps of one call. Its tensors have storage-less buffers, which whoever runs the steps
/// replaces by real ones.
class SHARD_API Binder final : public Launcher {
 public:
  using Launcher::Launcher;
  void launch(const Launch& launch) override { launch.keep(*this); }
  /// Adds a step that copies the bytes of `from` to `to`.
  void copy(const DenseTensor& to, const DenseTensor& from) override;
  bool draws() const override { return false; }
  /// Adds a step that runs `kernel` with these arguments. References and lists of tensors are
  /// copied.
  template <class... P>
  void add(void (*kernel)(const OpContext&, P...), const OpContext& ctx, std::type_identity_t<P>... args);

  std::vector<std::unique_ptr<BoundStep>> steps;
  std::vector<DenseTensor*> tensors;  // of all steps
  const RandomKey* key = nullptr;     // steps of random ops read their key here when they run
};

namespace detail {

/// What a step keeps for a parameter of type P: a copy of the value.
template <class P>
struct Kept {
  std::remove_cvref_t<P> value;
  Kept(Binder&, P given) : value(given) {}
  std::remove_cvref_t<P>& get() { return value; }
  std::remove_cvref_t<P>& rows(const Rows&) { return value; }
  void register_in(Binder&) {}
  bool list(std::vector<BoundTensor>&) { return true; }
  bool replays(std::vector<const DenseTensor*>&) { return true; }
};
template <>
struct Kept<const char*> {
  const char* value;
  Kept(Binder&, const char* given) : value(given) {}
  const char* get() { return value; }
  const char* rows(const Rows&) { return value; }
  void register_in(Binder&) {}
  bool list(std::vector<BoundTensor>&) { return true; }
  bool replays(std::vector<const DenseTensor*>&) { return true; }
};
template <class P>
requires std::is_same_v<std::remove_cvref_t<P>, DenseTensor>
struct Kept<P> {
  DenseTensor value;
  bool cut = false;
  Kept(Binder&, const DenseTensor& given) : value(given) {}
  DenseTensor& get() { return value; }
  DenseTensor rows(const Rows& rows) const {
    if (!value.defined()) return {};
    if (!cut) return value.reinterpret({{value.numel()}, value.dtype()});
    const size_t begin = static_cast<size_t>(rows.first * rows.length) * size_of(value.dtype());
    const Dims dims = rows.length == 1 ? Dims{rows.count} : Dims{rows.count, rows.length};
    return {value.storage(), Meta{dims, value.dtype()}, value.offset() + begin};
  }
  bool list(std::vector<BoundTensor>& tensors) {
    if (value.defined()) tensors.push_back({&value, !std::is_const_v<std::remove_reference_t<P>>, &cut});
    return true;
  }
  bool replays(std::vector<const DenseTensor*>& tensors) {
    if (value.defined()) tensors.push_back(&value);
    return true;
  }
  void register_in(Binder& binder) { binder.tensors.push_back(&value); }
};
template <class T>
requires std::is_same_v<std::remove_const_t<T>, DenseTensor>
struct Kept<std::span<T>> {
  std::vector<DenseTensor> values;
  Kept(Binder&, std::span<T> given) : values(given.begin(), given.end()) {}
  std::span<T> get() { return values; }
  std::span<T> rows(const Rows&) { return values; }
  bool list(std::vector<BoundTensor>&) { return false; }
  bool replays(std::vector<const DenseTensor*>& tensors) {
    for (const DenseTensor& value : values) {
      if (value.defined()) tensors.push_back(&value);
    }
    return true;
  }
  void register_in(Binder& binder) {
    for (DenseTensor& value : values) binder.tensors.push_back(&value);
  }
};
template <>
struct Kept<RandomKey> {
  const RandomKey* key;
  Kept(Binder& binder, RandomKey) : key(binder.key) {}
  RandomKey get() { return *key; }
  RandomKey rows(const Rows&) { return *key; }
  void register_in(Binder&) {}
  bool list(std::vector<BoundTensor>&) { return false; }
  bool replays(std::vector<const DenseTensor*>&) { return false; }
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
  std::vector<BoundTensor> tensors() override {
    std::vector<BoundTensor> all;
    const bool fit = std::apply([&](auto&... each) { return (each.list(all) && ...); }, args_);
    return fit ? all : std::vector<BoundTensor>();
  }
  std::vector<const DenseTensor*> replayable_tensors() override {
    if (ctx_.local != nullptr && ctx_.local->reducer != nullptr) return {};
    std::vector<const DenseTensor*> all;
    const bool replays = std::apply([&](auto&... each) { return (each.replays(all) && ...); }, args_);
    return replays ? all : std::vector<const DenseTensor*>();
  }
  void run_rows(const Rows& rows) override {
    std::apply(
        [&](auto&... each) {
          // The tensors for a range of rows are new values, which the kernel takes by reference.
          std::tuple<decltype(each.rows(rows))...> parts(each.rows(rows)...);
          std::apply([&](auto&... part) { kernel_(ctx_, part...); }, parts);
        },
        args_);
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
