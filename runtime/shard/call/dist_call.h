// One distributed call: collects the arguments, finds or makes its plan, reshards inputs, computes,
// writes back and wraps the results.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "shard/call/codegen_abi.h"
#include "shard/call/dense_call.h"
#include "shard/call/float32_call.h"
#include "shard/call/infer_call.h"
#include "shard/call/plan_cache.h"
#include "shard/call/plan_call.h"
#include "shard/call/view_link.h"
#include "shard/core/attr.h"
#include "shard/core/export.h"
#include "shard/core/op_context.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/layout_arg.h"

namespace shard::call {

enum class Variant : uint8_t { plain, inplace };

/// Selects the constructor for an in-place form.
struct InplaceForm {};
inline constexpr InplaceForm inplace{};

/// One distributed call. It is constructed with all arguments and then run. Every check runs before
/// the first byte is sent or written.
class SHARD_API DistCall {
 public:
  /// `args` are tensors, lists of tensors and attributes in the order of the YAML. They must
  /// outlive the call.
  template <class... Args>
  explicit DistCall(const OpDef& op, const Args&... args) : DistCall(op, Variant::plain) {
    (argument(args), ...);
  }
  template <class... Args>
  DistCall(InplaceForm, const OpDef& op, const Args&... args) : DistCall(op, Variant::inplace) {
    (argument(args), ...);
  }
  /// For an op without tensor arguments. All outputs get this layout, and each rank creates its own
  /// local shards.
  template <class... Args>
  DistCall(LayoutArg layout, const OpDef& op, const Args&... args) : DistCall(op, Variant::plain) {
    in(layout);
    (argument(args), ...);
  }
  DistCall(const DistCall&) = delete;
  DistCall& operator=(const DistCall&) = delete;
  ~DistCall() {
    cache_.give_list(std::move(locals_));
    cache_.give_list(std::move(results_));
  }

  /// Looks up the plan. On a miss it infers the global metas with `infer` and makes a plan. Then it
  /// reshards the inputs, calls `dense` on the ranks of the mesh, writes back and bumps versions.
  ///
  /// `dense` returns the local outputs: none, one, or a tuple of all in their order. The same
  /// outputs are returned as distributed tensors.
  template <class Infer, class Dense>
  auto run(Infer* infer, Dense&& dense) {
    using Result = std::invoke_result_t<Dense>;
    plan(infer, dense);
    const auto kernel = [&] {
      if constexpr (std::is_void_v<Result>) dense();
      else take(dense());
    };
    execute(kernel);
    if constexpr (!std::is_void_v<Result>) return result(std::type_identity<Result>());
  }
  /// The same for an op that only reinterprets its input 0.
  template <class Infer>
  Tensor run_reinterpret(Infer* infer) {
    plan(infer, nullptr);
    execute([&] { reinterpret_local(); });
    return variant_ == Variant::inplace ? Tensor() : output(0);
  }

  /// A call serves as the context of its infer_meta and dense functions.
  operator const OpContext&() const { return ctx_; }
  /// The local shard of an argument; undefined for an absent optional argument.
  const DenseTensor& operator[](size_t slot) const { return locals_[first(slot)]; }
  std::span<const DenseTensor> locals(size_t slot) const {
    return std::span(locals_).subspan(first(slot), slots_[slot].count);
  }
  DenseTensor& target(size_t slot) { return locals_[first(slot)]; }
  std::vector<DenseTensor*> targets(size_t slot);
  /// The meta of this rank's shard of an output, as the kernel computes it.
  const Meta& meta(size_t output) const { return plan_->kernel_metas[plan_->output_slots[output].first]; }
  std::span<const Meta> metas(size_t output) const {
    const SlotRange& slot = plan_->output_slots[output];
    return std::span(plan_->kernel_metas).subspan(slot.first, slot.count);
  }
  DynamicMeta dynamic_meta(size_t output) const { return {meta(output)}; }
  /// The value of the shape attribute in the dense call: the local shape of an output.
  IntArray local_shape(size_t output) const {
    return IntArray(plan_->output_shards[plan_->output_slots[output].first].dims);
  }

  /// The value of a dtype attribute in the dense call.
  DType local_dtype(DType asked) const { return plan_->in_float32 ? compute_dtype(asked) : asked; }
  std::optional<DType> local_dtype(const std::optional<DType>& asked) const {
    return asked ? std::optional(local_dtype(*asked)) : asked;
  }

  /// Sets the local result of an output.
  void set(size_t output, DenseTensor value) { results_[plan_->output_slots[output].first] = std::move(value); }
  void set(size_t output, std::vector<DenseTensor> values);
  Tensor output(size_t output);
  std::vector<Tensor> outputs(size_t output);

 private:
  DistCall(const OpDef& op, Variant variant);
  template <class T>
  void argument(const T& value) {
    if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, std::vector<Tensor>>) in(value);
    else attr(value);
  }
  void in(LayoutArg layout);
  void in(const Tensor& tensor);
  void in(const std::vector<Tensor>& tensors);
  template <class T>
  void attr(const T& value);

  template <class Infer, class Dense>
  void plan(Infer* infer, Dense&& dense) {
    const uint64_t hash = hash_words(key_);
    infer_ = infer_entry(infer);
    plan_ = cache_.find(key_, hash);
    try {
      if (plan_ == nullptr) {
        std::function<void()> kernel;
        if constexpr (std::is_invocable_v<Dense>) kernel = [&] { dense(); };
        plan_ = &make_plan(hash, kernel);
      }
      if (plan_->checked || extras_) check_policies();
    } catch (const Error& error) { rethrow(error); }
  }

  template <class Kernel>
  void execute(Kernel&& kernel) {
    CommQueue& queue = rank_.comm_queue();
    const uint64_t call = queue.calls_done() + 1;
    try {
      prepare();
      if (plan_->active && !plan_->relayout) run_kernel(kernel);
      queue.set_calls_done(call);
      if (tracer_ != nullptr) capture();
      finish();
    } catch (const Error& error) {
      report_failure(call);
      poison();
      rethrow(error);
    } catch (...) {
      report_failure(call);
      poison();
      throw;
    }
    if (plan_->checked) mark_maybe_poisoned(call);
    if (traced_) record_call();
  }

  template <class Kernel>
  void run_kernel(Kernel&& kernel) {
    if (!plan_->in_float32) return kernel();
    const Float32Call converted(ctx_, *plan_, locals_);
    kernel();
    convert_results(converted);
  }
  void convert_results(const Float32Call& converted);

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

  /// A plain argument, which is promoted to replicated once the mesh of the call is known.
  struct Promoted {
    size_t place;  // index in tensors_
    size_t key;    // index of its layout in key_
    std::string_view name;
    Tensor tensor;  // the replicated tensor
    Tensor plain;
  };
  /// State that few calls need.
  struct Extras {
    std::unique_ptr<AxisReducer> reducer;
    std::vector<Promoted> promoted;
    StaleViews stale;  // stale arguments
    // Sent in addition to the plan: refreshes, write-backs through views, checks of promoted
    // arguments.
    int64_t moment_bytes = 0;
    std::string moment_text;  // the same as text, for observers
    // Global metas, one for each flat output; empty for outputs that are not dynamic.
    std::vector<Meta> dynamic;
    std::vector<DenseTensor> captured_inputs;  // in a capture: the inputs as the op gets them
    std::vector<uint32_t> symbols;             // in a capture: the values of the program that the flat outputs are
  };
  Extras& extras() {
    if (!extras_) extras_ = std::make_unique<Extras>();
    return *extras_;
  }

  size_t first(size_t slot) const { return slots_[slot].first; }
  void add(const Tensor& tensor, bool optional);
  void key_tensor(const DistSpec* spec, const Meta& meta);
  void promote(const Tensor& tensor, std::string_view name);
  void place_promoted();
  /// Call this in an exception handler. An argument cannot be read, possibly on this rank alone, so
  /// the call counts as one that failed here.
  void report_unread();
  bool checks_promoted() const {
    return extras_ && !extras_->promoted.empty() && rank_.policies.promotion == PromotionPolicy::replicate_checked &&
           tracer_ == nullptr;
  }
  void check_replicated(const Promoted& promoted) const;
  /// The call so far, for messages: "add(x: f32[8, 4] [dp, -], y: f32[4] [-]) on mesh(dp=2)".
  std::string call_text() const;
  /// Throws the error again with the text of the whole call appended.
  [[noreturn]] void rethrow(const Error& error) const;
  template <class T>
  void key(const T& value);
  template <class T>
  void key(const std::optional<T>& value);
  template <class T>
  void key(const std::vector<T>& values) requires(!std::is_arithmetic_v<T> || std::is_same_v<T, bool>);
  void key_bytes(const void* data, size_t bytes);

  /// `dense` calls the dense function with the arguments of this call.
  const CallPlan& make_plan(uint64_t hash, const std::function<void()>& dense);
  /// Throws internal if the local shapes that the rule implies for outputs differ from those that
  /// the op computes from its local inputs.
  void check_rule() const;
  /// Throws no_kernel or mixed_device if the dense function would, before anything is sent. An op
  /// with tensors and a device attribute is not checked here.
  void check_kernel() const;
  void count_kernel(CallPlan& plan, const std::function<void()>& dense);

  void check_policies();
  PlannedTraffic planned_traffic(const PlannedTraffic& moment) const;
  PlannedTraffic moment_traffic();
  void check_writes() const;
  /// True for a tensor that is a view of another one, either in the same buffer or as a resharded
  /// copy.
  static bool is_view(const DistTensorImpl& x) {
    const Storage& storage = *x.value.storage();
    return storage.detachment() != nullptr || (x.grad.root && x.grad.root->value.storage().get() == &storage);
  }
  void check_write_back(const OutputPlan& output, PlannedTraffic& moves, bool all) const;
  void check_apart() const;
  /// Throws unless the local result has the meta that the layout of the output implies.
  void check_result(size_t output, const DenseTensor& result) const {
    if (!plan_->active) return;
    const Meta& shard = plan_->output_shards[output];
    if (!(result.meta() == shard)) fail_shape(plan_->outputs[output], result.meta(), shard);
  }
  void fill_with_identity(DenseTensor& piece) const;
  [[noreturn]] void fail_shape(const OutputPlan& output, const Meta& computed, const Meta& shard) const;
  void prepare();
  DenseTensor local_shape_of(size_t i) const;
  /// Reports the call to the tracer, with the inputs as they are after their reshards.
  void capture();
  /// In a capture, sets the program value that a result is.
  void mark(DenseTensor& result, size_t output) const {
    if (tracer_ != nullptr && !plan_->relayout) result.set_symbol(extras_->symbols[output]);
  }
  /// Copies `from` over `to`: the bytes of this rank or, in a capture, as a step of the program.
  void copy_over(DenseTensor& to, const DenseTensor& from) const;
  void reinterpret_local();
  DenseTensor move_input(size_t i) const;
  void finish();
  void finish_dynamic();
  void finish_view(size_t output);
  void finish_written_view(size_t output);
  void finish_inplace(size_t output);
  void replace_target(const OutputPlan& output, DenseTensor result, bool written);
  void detach(const DenseTensor& copy, size_t input);
  CommCause cause_of(size_t input) const {
    return {op_.name, op_.inputs[static_cast<size_t>(plan_->inputs[input].slot)].name};
  }
  /// Calls f(storage) for every storage that this call writes: its targets and, under
  /// ViewPolicy::sync, the storages that they are views of.
  template <class F>
  void for_written(F&& f);
  void poison();
  /// Marks what this call writes as doubtful: it has no valid value if the call fails on another
  /// rank.
  void mark_maybe_poisoned(uint64_t call);
  /// Reports to the world that the call failed on this rank. It may not have failed on other ranks.
  void report_failure(uint64_t call);
  void record_call();
  bool writes(const OutputPlan& output) const;

  const OpDef& op_;
  Rank& rank_;
  PlanCache& cache_;
  OpContext ctx_;
  Tracer* const tracer_ = Tracer::current();
  LocalCall local_;
  Variant variant_;
  bool traced_ = false;
  bool started_ = false;  // write-backs may have begun
  int64_t begin_ns_ = 0;
  CommStats before_;  // in a dry world: the statistics before the call
  const ProcessMesh* mesh_ = nullptr;
  const DistSpec* layout_ = nullptr;  // the requested layout, for an op without tensor arguments
  const CallPlan* plan_ = nullptr;
  InferEntry infer_;
  KeyWords key_;
  SmallVec<SlotRange, 16> slots_;
  SmallVec<DistTensorImpl*, 16> tensors_;  // null for absent optional arguments
  SmallVec<AttrRef, 16> attrs_;
  std::vector<DenseTensor> locals_;
  std::vector<DenseTensor> results_;
  std::unique_ptr<Extras> extras_;
};

template <class T>
void DistCall::attr(const T& value) {
  attrs_.push_back(&value);
  key(value);
}

template <class T>
void DistCall::key(const std::optional<T>& value) {
  key_.push_back(value.has_value());
  if (value) key(*value);
}

/// A list whose elements are not plain bytes is added element by element.
template <class T>
void DistCall::key(const std::vector<T>& values) requires(!std::is_arithmetic_v<T> || std::is_same_v<T, bool>) {
  key_.push_back(values.size());
  for (const T& value : values) key(value);
}

template <class T>
void DistCall::key(const T& value) {
  if constexpr (std::is_same_v<T, IntArray> || std::is_same_v<T, std::vector<float>> ||
                std::is_same_v<T, std::vector<double>>) {
    key_.push_back(value.size());
    key_bytes(value.data(), value.size() * sizeof(value[0]));
  } else if constexpr (std::is_same_v<T, std::string>) {
    key_.push_back(value.size());
    key_bytes(value.data(), value.size());
  } else if constexpr (std::is_same_v<T, Scalar>) {
    key_.push_back(value.is_integer());
    const double real = value.template to<double>();
    const int64_t integer = value.is_integer() ? value.template to<int64_t>() : 0;
    key_bytes(&real, sizeof real);
    key_.push_back(static_cast<uint64_t>(integer));
  } else {
    key_bytes(&value, sizeof value);
  }
}

}  // namespace shard::call
