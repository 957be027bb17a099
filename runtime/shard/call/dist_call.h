// One distributed call as generated code makes it. Its parts are the arguments (call_args.h), the
// plan (find_plan.h) and the execution of the plan (call_execution.h).
#pragma once

#include <tuple>
#include <type_traits>
#include <vector>

#include "shard/call/call_args.h"
#include "shard/call/call_execution.h"
#include "shard/call/codegen_abi.h"
#include "shard/core/export.h"
#include "shard/core/function_ref.h"

namespace shard::call {

/// Selects the constructor for an in-place form.
struct InplaceForm {};
inline constexpr InplaceForm inplace{};

/// One distributed call. It is constructed with all arguments and then run. Every check runs before
/// the first byte is sent or written, but that promoted arguments are equal on all ranks, for which
/// hashes are sent.
class SHARD_API DistCall {
 public:
  /// `args` are tensors, lists of tensors and attributes in the order of the YAML. They must
  /// outlive the call.
  template <class... Args>
  explicit DistCall(const OpDef& op, const Args&... args) : args_(op, false), execution_(args_) {
    (args_.add(args), ...);
  }
  template <class... Args>
  DistCall(InplaceForm, const OpDef& op, const Args&... args) : args_(op, true), execution_(args_) {
    (args_.add(args), ...);
  }
  /// For an op without tensor arguments. All outputs get this layout, and each rank creates its own
  /// local shards.
  template <class... Args>
  DistCall(LayoutArg layout, const OpDef& op, const Args&... args) : args_(op, false), execution_(args_) {
    args_.add(layout);
    (args_.add(args), ...);
  }

  /// Finds the plan, or infers the global metas with `infer` and makes it. Then it reshards the
  /// inputs, calls `dense` on the ranks of the mesh, writes back and bumps versions.
  ///
  /// `dense` returns the local outputs: none, one, or a tuple of all in their order. The same
  /// outputs are returned as distributed tensors.
  template <class Infer, class Dense>
  auto run(Infer* infer, Dense&& dense) {
    using Result = std::invoke_result_t<Dense>;
    const auto kernel = [&] {
      if constexpr (std::is_void_v<Result>) dense();
      else take(dense());
    };
    run_kernel(infer_entry(infer), kernel);
    if constexpr (!std::is_void_v<Result>) return result(std::type_identity<Result>());
  }
  /// The same for an op that only reinterprets its input 0.
  template <class Infer>
  Tensor run_reinterpret(Infer* infer) {
    reinterpret(infer_entry(infer));
    return args_.inplace ? Tensor() : output(0);
  }

  /// A call serves as the context of its infer_meta and dense functions.
  operator const OpContext&() const { return execution_.ctx(); }
  /// The local shard of an argument; undefined for an absent optional argument.
  const DenseTensor& operator[](size_t slot) const { return execution_.locals()[args_.first(slot)]; }
  std::span<const DenseTensor> locals(size_t slot) const {
    return std::span(execution_.locals()).subspan(args_.first(slot), args_.slots[slot].count);
  }
  DenseTensor& target(size_t slot) { return execution_.locals()[args_.first(slot)]; }
  std::vector<DenseTensor*> targets(size_t slot) {
    std::vector<DenseTensor*> all;
    for (size_t i = 0; i < args_.slots[slot].count; ++i) all.push_back(&target(slot) + i);
    return all;
  }
  /// The meta of this rank's shard of an output, as the kernel computes it.
  const Meta& meta(size_t output) const { return plan().kernel_metas[first(output)]; }
  std::span<const Meta> metas(size_t output) const {
    return std::span(plan().kernel_metas).subspan(first(output), plan().output_slots[output].count);
  }
  DynamicMeta dynamic_meta(size_t output) const { return {meta(output)}; }
  /// The value of the shape attribute in the dense call: the local shape of an output.
  IntArray local_shape(size_t output) const { return IntArray(plan().output_shards[first(output)].dims); }

  /// The value of a dtype attribute in the dense call.
  DType local_dtype(DType asked) const { return plan().in_float32 ? compute_dtype(asked) : asked; }
  std::optional<DType> local_dtype(const std::optional<DType>& asked) const {
    return asked ? std::optional(local_dtype(*asked)) : asked;
  }

  /// Sets the local result of an output.
  void set(size_t output, DenseTensor value) { execution_.results()[first(output)] = std::move(value); }
  void set(size_t output, std::vector<DenseTensor> values) { execution_.set(output, std::move(values)); }
  Tensor output(size_t output) { return execution_.output(first(output)); }
  std::vector<Tensor> outputs(size_t output) {
    std::vector<Tensor> all;
    for (size_t i = 0; i < plan().output_slots[output].count; ++i) all.push_back(execution_.output(first(output) + i));
    return all;
  }

 private:
  void run_kernel(const InferEntry& infer, FunctionRef<void()> kernel);
  void reinterpret(const InferEntry& infer);

  const CallPlan& plan() const { return execution_.plan(); }
  /// The flat number of the first tensor of an output slot.
  size_t first(size_t output) const { return plan().output_slots[output].first; }

  void take(DenseTensor value) { set(0, std::move(value)); }
  void take(std::vector<DenseTensor> values) { set(0, std::move(values)); }
  template <class... Values>
  void take(std::tuple<Values...> values) {
    size_t output = 0;
    std::apply([&](auto&... value) { (set(output++, std::move(value)), ...); }, values);
  }
  Tensor result(std::type_identity<DenseTensor>, size_t slot = 0) { return output(slot); }
  std::vector<Tensor> result(std::type_identity<std::vector<DenseTensor>>, size_t slot = 0) { return outputs(slot); }
  template <class... Values>
  auto result(std::type_identity<std::tuple<Values...>>) {
    size_t slot = 0;
    // Braced initialisation fixes the order.
    const auto next = [&]<class T>(std::type_identity<T> type) { return result(type, slot++); };
    return std::tuple<decltype(result(std::type_identity<Values>()))...>{next(std::type_identity<Values>())...};
  }

  CallArgs args_;
  CallExecution execution_;
};

}  // namespace shard::call
