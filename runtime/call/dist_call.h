// One distributed call: collect arguments, find or infer its plan, move inputs, compute, write back, wrap.
#pragma once

#include <array>
#include <optional>
#include <variant>
#include <vector>

#include "call/codegen_abi.h"
#include "call/plan_cache.h"
#include "core/op_context.h"
#include "dist/dist_tensor.h"

namespace shard::call {

enum class Variant : uint8_t { plain, inplace };

/// Where infer_meta writes the global metas of the outputs, by slot.
class OutMetas {
 public:
  explicit OutMetas(size_t slots) : slots_(slots) {}
  Meta& one(size_t slot) {
    slots_[slot].resize(1);
    return slots_[slot][0];
  }
  std::vector<Meta>& list(size_t slot) { return slots_[slot]; }
  const std::vector<std::vector<Meta>>& slots() const { return slots_; }

 private:
  std::vector<std::vector<Meta>> slots_;
};

/// Used by generated code in this order: in and attr for all arguments, plan, run (with set inside), output.
/// Every check runs before the first byte is sent or written.
class DistCall {
 public:
  explicit DistCall(const OpDef& op, Variant variant = Variant::plain);
  DistCall(const DistCall&) = delete;
  DistCall& operator=(const DistCall&) = delete;
  ~DistCall() {
    cache_.give_list(std::move(locals_));
    cache_.give_list(std::move(results_));
  }

  void in(const Tensor& tensor);
  void in(const std::vector<Tensor>& tensors);
  template <class T>
  void attr(const T& value);

  /// Looks the plan up; on a miss calls infer(OutMetas&), which infers the global metas, and makes one.
  template <class Infer>
  void plan(Infer&& infer) {
    const uint64_t hash = hash_words(key_);
    plan_ = cache_.find(key_, hash);
    if (plan_ == nullptr) {
      OutMetas metas(op_.outputs.size());
      infer(metas);
      plan_ = &make_plan(hash, metas);
    }
    check_policies();
  }

  /// Moves the inputs, runs `kernel` on ranks of the mesh, writes back and bumps versions.
  template <class Kernel>
  void run(Kernel&& kernel) {
    try {
      prepare();
      if (plan_->active && !plan_->relayout) kernel();
      finish();
    } catch (...) {
      poison();
      throw;
    }
    if (traced_) record_call();
  }
  /// The same for an op that only reinterprets its input 0.
  void run_reinterpret() {
    run([&] { reinterpret_local(); });
  }

  const OpContext& context() const { return ctx_; }
  const Meta& meta(size_t slot) const { return tensor(slot).global; }
  const Meta* optional_meta(size_t slot) const { return tensors_[first(slot)] == nullptr ? nullptr : &tensor(slot).global; }
  std::vector<Meta> metas(size_t slot) const;
  const DenseTensor& local(size_t slot) const { return locals_[first(slot)]; }
  std::span<const DenseTensor> locals(size_t slot) const { return std::span(locals_).subspan(first(slot), slots_[slot].count); }
  DenseTensor& target(size_t slot) { return locals_[first(slot)]; }
  std::vector<DenseTensor*> targets(size_t slot);
  /// The local shape of an output.
  IntArray local_shape(size_t output) const { return plan_->output_dims[plan_->output_slots[output].first]; }

  void set(size_t output, DenseTensor value) { results_[plan_->output_slots[output].first] = std::move(value); }
  void set(size_t output, std::vector<DenseTensor> values);
  Tensor output(size_t output);
  std::vector<Tensor> outputs(size_t output);

 private:
  using AttrRef = std::variant<const bool*, const int*, const int64_t*, const float*, const double*, const DType*, const Scalar*,
                               const IntArray*, const std::string*, const std::vector<float>*, const std::vector<double>*, const Device*,
                               const std::optional<DType>*, const std::optional<Device>*, const std::vector<bool>*,
                               const std::vector<std::string>*, const std::vector<Scalar>*>;

  size_t first(size_t slot) const { return slots_[slot].first; }
  DistTensorImpl& tensor(size_t slot) const { return *tensors_[first(slot)]; }
  void add(const Tensor& tensor, bool optional);
  template <class T>
  void key(const T& value);
  template <class T>
  void key(const std::optional<T>& value);
  template <class T>
  void key(const std::vector<T>& values) requires(!std::is_arithmetic_v<T> || std::is_same_v<T, bool>);
  void key_bytes(const void* data, size_t bytes);

  const CallPlan& make_plan(uint64_t hash, const OutMetas& metas);
  spmd::RuleResult infer_rule(std::span<const spmd::SlotRange> ranges, std::span<const Meta> flat, CallPlan& plan);
  void plan_aliases(CallPlan& plan);
  void plan_alias(CallPlan& plan, const AliasDef& alias, size_t input, size_t output);
  void bind(CallPlan& plan) const;

  void check_policies();
  void check_writes() const;
  void prepare();
  void reinterpret_local();
  void finish();
  void finish_view(size_t output);
  void finish_written_view(size_t output);
  void finish_inplace(size_t output);
  void detach(const Ref<Storage>& copy, size_t input);
  void poison();
  void record_call();
  bool writes(const OutputPlan& output) const;

  const OpDef& op_;
  Rank& rank_;
  PlanCache& cache_;
  OpContext ctx_;
  LocalCall local_;
  Variant variant_;
  bool traced_ = false;
  bool started_ = false;  // write-backs may have begun
  int64_t begin_ns_ = 0;
  const ProcessMesh* mesh_ = nullptr;
  const CallPlan* plan_ = nullptr;
  KeyWords key_;
  SmallVec<spmd::SlotRange, 16> slots_;
  SmallVec<DistTensorImpl*, 16> tensors_;  // null for absent optionals
  SmallVec<AttrRef, 16> attrs_;
  std::vector<DenseTensor> locals_;
  std::vector<DenseTensor> results_;
  std::unique_ptr<AxisReducer> reducer_;
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

/// A list of what has no plain bytes: element by element.
template <class T>
void DistCall::key(const std::vector<T>& values) requires(!std::is_arithmetic_v<T> || std::is_same_v<T, bool>) {
  key_.push_back(values.size());
  for (const T& value : values) key(value);
}

template <class T>
void DistCall::key(const T& value) {
  if constexpr (std::is_same_v<T, IntArray> || std::is_same_v<T, std::vector<float>> || std::is_same_v<T, std::vector<double>>) {
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
