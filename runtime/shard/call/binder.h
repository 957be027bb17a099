// Calls that are prepared once and run many times: the launcher that keeps their kernels and copies.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
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

/// Argument `index` of a kernel, as a base class: a std::tuple of many arguments takes long to compile.
template <size_t index, class T>
struct Argument {
  T value;
};

template <class Indices, class... P>
class BoundKernel;
template <size_t... i, class... P>
class BoundKernel<std::index_sequence<i...>, P...> final : public BoundStep, private Argument<i, Kept<P>>... {
 public:
  BoundKernel(Binder& binder, void (*kernel)(const OpContext&, P...), const OpContext& ctx, P... args)
      : Argument<i, Kept<P>>{Kept<P>(binder, args)}..., kernel_(kernel), ctx_{ctx.op, ctx.local} {
    (Argument<i, Kept<P>>::value.register_in(binder), ...);
  }
  void run() override { kernel_(ctx_, Argument<i, Kept<P>>::value.get()...); }
  std::vector<BoundTensor> tensors() override {
    std::vector<BoundTensor> all;
    const bool fit = (Argument<i, Kept<P>>::value.list(all) && ...);
    return fit ? all : std::vector<BoundTensor>();
  }
  std::vector<const DenseTensor*> replayable_tensors() override {
    if (ctx_.reducer() != nullptr) return {};
    std::vector<const DenseTensor*> all;
    const bool replays = (Argument<i, Kept<P>>::value.replays(all) && ...);
    return replays ? all : std::vector<const DenseTensor*>();
  }
  void run_rows(const Rows& rows) override { run_with(Argument<i, Kept<P>>::value.rows(rows)...); }

 private:
  /// The tensors for a range of rows are new values, which the kernel takes by reference.
  template <class... Parts>
  void run_with(Parts&&... parts) {
    kernel_(ctx_, parts...);
  }

  void (*kernel_)(const OpContext&, P...);
  OpContext ctx_;
};

}  // namespace detail

template <class... P>
void Binder::add(void (*kernel)(const OpContext&, P...), const OpContext& ctx, std::type_identity_t<P>... args) {
  using Step = detail::BoundKernel<std::index_sequence_for<P...>, P...>;
  steps.push_back(std::unique_ptr<BoundStep>(new Step(*this, kernel, ctx, args...)));
}

}  // namespace shard::call
