// The first part of a distributed call: its arguments, checked, in the forms that planning and
// execution need, and the key of its plan.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "shard/call/dense_call.h"
#include "shard/call/plan_cache.h"
#include "shard/call/plan_call.h"
#include "shard/call/view_link.h"
#include "shard/core/attr.h"
#include "shard/core/export.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/layout_arg.h"

namespace shard::call {

/// The arguments of one distributed call. The caller's tensors and attributes must outlive it.
class SHARD_API CallArgs {
 public:
  CallArgs(const OpDef& op, bool inplace);

  /// Adds the next argument: a tensor, a list of tensors or an attribute, in the order of the YAML.
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, std::vector<Tensor>>) {
      add_slot(value);
    } else {
      attrs.push_back(&value);
      add_key(value);
    }
  }
  /// For an op without tensor arguments: the layout of all outputs.
  void add(LayoutArg layout);

  /// Throws for an argument that the call cannot read. If it is poisoned or promoted, the other ranks
  /// may be able to read theirs: the call then counts as one that failed on this rank.
  void check_readable();

  /// The flat number of the first tensor of a slot.
  size_t first(size_t slot) const { return slots[slot].first; }
  std::string_view name_of(int slot) const { return op.inputs[static_cast<size_t>(slot)].name; }
  /// Whether PromotionPolicy compares the promoted arguments of all ranks.
  bool checks_promoted() const {
    return extras_ && !extras_->promoted.empty() && rank.policies.promotion == PromotionPolicy::replicate_checked &&
           tracer == nullptr;
  }
  /// Throws layout if a promoted argument is not the same on all ranks. A collective.
  void check_promoted() const;
  /// Calls f(storage) for every storage that the call writes: its targets and, under
  /// ViewPolicy::sync, the storages that they are views of.
  template <class F>
  void for_written(const F& f) const;
  /// Marks what the call, number `call` of this rank, writes as doubtful: it has no valid value if
  /// the call fails on some ranks only.
  void mark_maybe_poisoned(uint64_t call) const {
    if (ctx.launcher == nullptr)
      for_written([&](Storage& storage) { storage.mark_maybe_poisoned(rank.partial_failures(), call); });
  }
  /// Call this in an exception handler. Reports to the world that the call failed on this rank; it
  /// may not have failed on other ranks.
  void report_failure(uint64_t call) const;
  /// The call, for messages: "add(x: f32[8, 4] [dp, -], y: f32[4] [-]) on mesh(dp=2)".
  std::string text() const;
  /// Throws the error again with the text of the whole call appended.
  [[noreturn]] void rethrow(const Error& error) const;

  /// A plain argument, which is promoted to replicated once the mesh of the call is known.
  struct Promoted {
    size_t place;  // index in tensors
    size_t key;    // index of its layout in the key
    std::string_view name;
    Tensor tensor;  // the replicated tensor
    Tensor plain;
  };
  /// What few calls have.
  struct Extras {
    std::vector<Promoted> promoted;
    StaleViews stale;  // stale arguments
    /// Sent in addition to the plan, because of the current state of the arguments: refreshes,
    /// write-backs through views, checks of promoted arguments.
    PlannedTraffic moment;
  };
  /// Null where there are none.
  Extras* extras() const { return extras_.get(); }
  Extras& make_extras() {
    if (!extras_) extras_ = std::make_unique<Extras>();
    return *extras_;
  }

  const OpDef& op;
  Rank& rank;
  PlanCache& cache;
  const OpContext ctx;
  Tracer* const tracer = Tracer::current();
  const bool inplace;
  const ProcessMesh* mesh = nullptr;
  const DistSpec* layout = nullptr;  // the requested layout, for an op without tensor arguments
  KeyWords key;
  SmallVec<SlotRange, 16> slots;
  SmallVec<DistTensorImpl*, 16> tensors;  // flat; null for absent optional arguments
  SmallVec<AttrRef, 16> attrs;

 private:
  void add_slot(const Tensor& tensor);
  void add_slot(const std::vector<Tensor>& tensors);
  void add_tensor(const Tensor& tensor, bool optional);
  void check_readable(DistTensorImpl& impl, int slot);
  void promote(const Tensor& tensor, std::string_view name);
  void place_promoted();
  void report_unread() const;

  template <class T>
  void add_key(const T& value);
  template <class T>
  void add_key(const std::optional<T>& value);
  template <class T>
  void add_key(const std::vector<T>& values) requires(!std::is_arithmetic_v<T> || std::is_same_v<T, bool>);
  void add_tensor_key(const DistSpec* spec, const Meta& meta);
  void add_key_bytes(const void* data, size_t bytes);

  std::unique_ptr<Extras> extras_;
};

template <class F>
void CallArgs::for_written(const F& f) const {
  for (const AliasDef& alias : op.aliases) {
    if (!(alias.kind == AliasDef::Kind::inplace ? inplace : alias.kind == AliasDef::Kind::written_view)) continue;
    // A change of metadata alone is not a write.
    if (alias.kind == AliasDef::Kind::inplace && reinterprets(op, static_cast<size_t>(alias.output))) continue;
    const SlotRange& slot = slots[static_cast<size_t>(alias.input)];
    for (size_t i = slot.first; i < slot.first + slot.count; ++i) {
      if (tensors[i] == nullptr) continue;
      Storage& target = *tensors[i]->value.storage();
      f(target);
      if (rank.policies.view == ViewPolicy::sync) target.for_each_source(f);
    }
  }
}

template <class T>
void CallArgs::add_key(const std::optional<T>& value) {
  key.push_back(value.has_value());
  if (value) add_key(*value);
}

/// A list whose elements are not plain bytes is added element by element.
template <class T>
void CallArgs::add_key(const std::vector<T>& values) requires(!std::is_arithmetic_v<T> || std::is_same_v<T, bool>) {
  key.push_back(values.size());
  for (const T& value : values) add_key(value);
}

template <class T>
void CallArgs::add_key(const T& value) {
  if constexpr (std::is_same_v<T, IntArray> || std::is_same_v<T, std::vector<float>> ||
                std::is_same_v<T, std::vector<double>> || std::is_same_v<T, std::string>) {
    key.push_back(value.size());
    add_key_bytes(value.data(), value.size() * sizeof(value[0]));
  } else if constexpr (std::is_same_v<T, Scalar>) {
    key.push_back(value.is_integer());
    const double real = value.template to<double>();
    const int64_t integer = value.is_integer() ? value.template to<int64_t>() : 0;
    add_key_bytes(&real, sizeof real);
    key.push_back(static_cast<uint64_t>(integer));
  } else {
    add_key_bytes(&value, sizeof value);
  }
}

}  // namespace shard::call
