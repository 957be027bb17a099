#include "call/dist_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "call/dense_call.h"
#include "call/exchange.h"
#include "call/mesh_reducer.h"
#include "call/moved_inputs.h"
#include "core/recorder.h"
#include "dist/view_use.h"
#include "reshard/execute.h"

namespace shard::call {
namespace {

constinit thread_local MovedInputs* keeper = nullptr;

}  // namespace

MovedInputs::MovedInputs() : before_(keeper) { keeper = this; }
MovedInputs::~MovedInputs() { keeper = before_; }
MovedInputs* MovedInputs::current() { return keeper; }

namespace {

std::vector<double> numbers_of(const std::vector<Scalar>& scalars) {
  std::vector<double> numbers;
  for (const Scalar& scalar : scalars) numbers.push_back(scalar.to<double>());
  return numbers;
}

}  // namespace

spmd::AttrValue rule_value(const AttrRef& attr) {
  return std::visit(
      [](const auto* value) -> spmd::AttrValue {
        using T = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, int>) return static_cast<int64_t>(*value);
        else if constexpr (std::is_same_v<T, float>) return static_cast<double>(*value);
        else if constexpr (std::is_same_v<T, std::vector<float>>) return std::vector<double>(value->begin(), value->end());
        else if constexpr (std::is_same_v<T, Device>) return to_string(*value);
        else if constexpr (std::is_same_v<T, std::optional<DType>>) return *value ? spmd::AttrValue(**value) : spmd::AttrValue(std::string());
        else if constexpr (std::is_same_v<T, std::optional<Device>>) return *value ? to_string(**value) : std::string();
        else if constexpr (std::is_same_v<T, std::vector<bool>>) return std::vector<double>(value->begin(), value->end());
        else if constexpr (std::is_same_v<T, std::vector<std::string>>) return fmt::format("{}", fmt::join(*value, ","));
        else if constexpr (std::is_same_v<T, std::vector<Scalar>>) return numbers_of(*value);
        else return *value;
      },
      attr);
}

namespace {

/// The input of an output whose list argument is empty.
constexpr size_t kAbsent = static_cast<size_t>(-1);

}  // namespace

DistCall::DistCall(const OpDef& op, Variant variant)
    : op_(op), rank_(current_rank()), cache_(PlanCache::of(rank_)), ctx_{(variant == Variant::inplace ? op.inplace_name : op.name).data()}, variant_(variant) {
  locals_ = cache_.take_list();
  results_ = cache_.take_list();
  traced_ = rank_.trace_calls || cache_.observer;
  if (traced_) begin_ns_ = now_ns();
  ctx_.recorder = Recorder::current();
  if (ctx_.recorder != nullptr) {
    ctx_.dry = &ctx_.recorder->meter;
    traced_ = false;
  } else if (rank_.dry) {
    ctx_.dry = rank_.dry.get();
    before_ = rank_.stats();
    traced_ = true;
  }
  const Policies& p = rank_.policies;
  key_.push_back(reinterpret_cast<uintptr_t>(&op));
  key_.push_back(static_cast<uint64_t>(variant) | static_cast<uint64_t>(p.view) << 8 | static_cast<uint64_t>(p.inplace) << 16 |
                 static_cast<uint64_t>(p.fallback) << 24);
}

void DistCall::in(LayoutArg layout) {
  if (layout.spec == nullptr) fail(ErrorCode::layout, "[{}] the layout is null; give one, such as DistSpec::replicated(mesh, dims), or none", op_.name);
  layout_ = layout.spec;
  mesh_ = layout_->mesh();
  key_.push_back(reinterpret_cast<uintptr_t>(layout_));
}

void DistCall::in(const Tensor& tensor) {
  const bool optional = op_.inputs[slots_.size()].kind == SlotDef::Kind::optional;
  slots_.push_back({tensors_.size(), 1});
  add(tensor, optional);
}

void DistCall::in(const std::vector<Tensor>& tensors) {
  slots_.push_back({tensors_.size(), tensors.size()});
  key_.push_back(tensors.size());
  for (const Tensor& tensor : tensors) add(tensor, false);
}

void DistCall::add(const Tensor& tensor, bool optional) {
  const std::string_view name = op_.inputs[slots_.size() - 1].name;
  if (!tensor.defined()) {
    if (!optional) {
      fail(ErrorCode::undefined, "[{}] argument '{}' is an undefined tensor; give a value\n  in the call {}", ctx_.op, name, call_text());
    }
    tensors_.push_back(nullptr);
    key_.push_back(0);
    return;
  }
  if (ctx_.recorder != nullptr) ctx_.recorder->adopt(tensor);
  if (!tensor.is_dist()) return promote(tensor, name);
  auto& impl = static_cast<DistTensorImpl&>(tensor.get());
  if (impl.owner != &rank_) {
    fail(ErrorCode::wrong_rank, "[{}] {} belongs to rank {}, but rank {} of {} makes the call; each rank uses its own tensors", ctx_.op,
         argument_text(name, impl), impl.owner->id(), rank_.id(), &impl.owner->world() == &rank_.world() ? "the same world" : "another world");
  }
  if (impl.value.symbol() != 0 && ctx_.recorder == nullptr) fail_escaped(ctx_.op, argument_text(name, impl));
  if (mesh_ == nullptr) {
    mesh_ = impl.spec->mesh();
    if (extras_) place_promoted();
  }
  if (impl.spec->mesh() != mesh_) {
    fail(ErrorCode::layout,
         "[{}] {} is on another mesh than the arguments before it; all tensors of a call are on one mesh: reshard it to a layout on {}\n"
         "  in the call {}",
         ctx_.op, argument_text(name, impl), mesh_->describe(), call_text());
  }
  Storage& storage = *impl.value.storage();
  const ViewPolicy policy = rank_.policies.view;
  try {
    // One that is stale is refreshed once the call is allowed.
    if (policy != ViewPolicy::strict && storage.stale()) extras().stale.add(storage, policy);
    else storage.check_read();
    if (storage.state() == Storage::State::shape_only && (op_.no_need_buffer >> (slots_.size() - 1) & 1u) == 0) fail_no_data(ctx_, impl.value, name);
  } catch (const Error& error) {
    const std::string_view advice = policy == ViewPolicy::strict ? view_advice(storage, error.code(), policy) : "";
    fail(error.code(), "[{}] {}: {}{}\n  in the call {}", ctx_.op, argument_text(name, impl), error.what(), advice, call_text());
  }
  tensors_.push_back(&impl);
  key_tensor(impl.spec, impl.global);
}

inline void DistCall::key_tensor(const DistSpec* spec, const Meta& meta) {
  key_.push_back(reinterpret_cast<uintptr_t>(spec));
  key_.push_back(static_cast<uint64_t>(meta.dtype) << 8 | static_cast<uint64_t>(meta.dims.rank()));
  for (int64_t size : meta.dims) key_.push_back(static_cast<uint64_t>(size));
}

void DistCall::promote(const Tensor& tensor, std::string_view name) {
  const auto slot = static_cast<int>(slots_.size()) - 1;
  if (rank_.policies.promotion == PromotionPolicy::error) {
    fail(ErrorCode::layout,
         "[{}] {} is a plain tensor, but others are distributed. Make it distributed with distribute(tensor, spec), or the others plain with "
         "full(tensor); under PromotionPolicy::replicate it counts as replicated\n  in the call {}",
         ctx_.op, argument_text(name, tensor.get()), call_text());
  }
  for (const AliasDef& alias : op_.aliases) {
    if (alias.input != slot || (alias.kind == AliasDef::Kind::inplace && variant_ != Variant::inplace)) continue;
    fail(ErrorCode::layout,
         "[{}] {} is a plain tensor whose buffer output '{}' would share: the result of a distributed call cannot be in it, so "
         "PromotionPolicy::replicate does not apply. Make it distributed with distribute(tensor, spec)\n  in the call {}",
         ctx_.op, argument_text(name, tensor.get()), op_.outputs[static_cast<size_t>(alias.output)].name, call_text());
  }
  tensor.get().value.storage()->check_read();
  extras().promoted.push_back({tensors_.size(), key_.size(), name, tensor, tensor});
  tensors_.push_back(nullptr);
  key_tensor(nullptr, tensor.meta());
  if (mesh_ != nullptr) place_promoted();
}

void DistCall::place_promoted() {
  for (Promoted& promoted : extras_->promoted) {
    if (promoted.tensor.is_dist()) continue;
    const Meta meta = promoted.tensor.meta();
    const DistSpec* const spec = DistSpec::replicated(mesh_, meta.dims.rank());
    const bool here = mesh_->coordinate(rank_.id()).has_value();
    DenseTensor value = here ? promoted.tensor.get().value : absent_value(meta);
    if (ctx_.recorder != nullptr) {
      const RecordedOutput to{.meta = meta, .spec = spec, .device = promoted.tensor.device()};
      value.set_symbol(ctx_.recorder->convert(Recorder::Conversion::distribute, promoted.tensor.get().value, to, -1));
    }
    promoted.tensor = make_dist(rank_, meta, spec, std::move(value));
    tensors_[promoted.place] = &dist_impl(promoted.tensor);
    key_[promoted.key] = reinterpret_cast<uintptr_t>(spec);
    cache_.count_promoted();
  }
}

void DistCall::check_replicated(const Promoted& promoted) const {
  const Meta& meta = promoted.plain.meta();
  KeyWords words;
  words.push_back(static_cast<uint64_t>(meta.dtype));
  for (int64_t size : meta.dims) words.push_back(static_cast<uint64_t>(size));
  const uint64_t shape = hash_words(words);
  const bool has_data = promoted.plain.get().value.has_data();
  const Tensor host = has_data ? promoted.plain.to(kCpu) : promoted.plain;
  const uint64_t hash[] = {has_data ? hash_bytes(shape, host.get().value.raw(), meta.bytes()) : shape};
  const std::vector<uint64_t> hashes = gather_words(rank_, hash, {op_.name, promoted.name});
  const int first = mesh_->processes().front();
  std::vector<int> others;
  for (int process : mesh_->processes()) {
    if (hashes[static_cast<size_t>(process)] != hashes[static_cast<size_t>(first)]) others.push_back(process);
  }
  if (others.empty()) return;
  fail(ErrorCode::layout,
       "[{}] {} was promoted to replicated, but is not the same on all ranks of {}: ranks {} have another value than rank {}. Give all ranks the "
       "same value, or make it distributed with distribute(tensor, spec, from_rank({}))",
       ctx_.op, argument_text(promoted.name, promoted.plain.get()), mesh_->describe(), fmt::join(others, ", "), first, first);
}

std::string DistCall::call_text() const {
  std::string text;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    std::string tensors;
    for (size_t i = first(slot); i < std::min(first(slot) + slots_[slot].count, tensors_.size()); ++i) {
      const DistTensorImpl* impl = tensors_[i];
      tensors += fmt::format("{}{}", i == first(slot) ? "" : ", ", impl ? fmt::format("{} {}", to_string(impl->global), impl->spec->text()) : "none");
    }
    if (op_.inputs[slot].kind == SlotDef::Kind::list) tensors = "{" + tensors + "}";
    if (!tensors.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", op_.inputs[slot].name, tensors);
  }
  return fmt::format("{}({}) on {}", ctx_.op, text, mesh_ == nullptr ? "no mesh yet" : mesh_->describe());
}

void DistCall::rethrow(const Error& error) const {
  // What another rank failed with is no news of this call.
  if (error.code() == ErrorCode::peer_failed) throw;
  fail(error.code(), "{}\n  in the call {}", error.what(), call_text());
}

void DistCall::key_bytes(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from + i, std::min(sizeof word, bytes - i));
    key_.push_back(word);
  }
}

std::vector<DenseTensor*> DistCall::targets(size_t slot) {
  std::vector<DenseTensor*> all;
  for (size_t i = 0; i < slots_[slot].count; ++i) all.push_back(&locals_[first(slot) + i]);
  return all;
}

void DistCall::begin_inference(MetaSink& metas) {
  for (const DistTensorImpl* impl : tensors_)
    locals_.push_back(impl == nullptr ? DenseTensor() : DenseTensor(impl->value.storage(), impl->global));
  metas.slots.resize(op_.outputs.size());
  ctx_.infer = &metas;
}

void DistCall::end_inference() {
  ctx_.infer = nullptr;
  locals_.clear();
}

void DistCall::set(size_t output, std::vector<DenseTensor> values) {
  if (ctx_.infer != nullptr) return;
  const size_t count = plan_->output_slots[output].count;
  if (values.size() != count) {
    fail(ErrorCode::internal, "[{}] computed {} pieces of '{}', but there are {}; its infer_meta function is wrong", ctx_.op, values.size(),
         op_.outputs[output].name, count);
  }
  for (size_t i = 0; i < values.size(); ++i) results_[plan_->output_slots[output].first + i] = std::move(values[i]);
}

spmd::RuleResult DistCall::given_layout(std::span<const Meta> flat) const {
  check_mesh_in_world(mesh_, rank_.world());
  spmd::RuleResult result;
  for (const Meta& meta : flat) {
    if (meta.dims.rank() != layout_->rank()) {
      fail(ErrorCode::layout, "[{}] layout {} on {} has {} dims, but the result {} has {}; give the layout an entry for each dim", op_.name,
           layout_->text(), mesh_->describe(), layout_->rank(), to_string(meta), meta.dims.rank());
    }
    if (loses_values(meta.dtype, *DistSpec::replicated(mesh_, meta.dims.rank()), *layout_)) {
      fail(ErrorCode::layout,
           "[{}] the result {} would lose values in layout {} on {}: what is pending with any or all is 0 or 1 once it is reduced, and a pending average of "
           "integers may wrap around; make it of dtype bool or a float dtype, or leave out that reduction",
           op_.name, to_string(meta), layout_->text(), mesh_->describe());
    }
    result.outputs.push_back(layout_->layout());
  }
  return result;
}

spmd::RuleResult DistCall::infer_rule(std::span<const SlotRange> ranges, std::span<const Meta> flat, CallPlan& plan) {
  std::vector<spmd::TensorArg> args;
  for (DistTensorImpl* impl : tensors_) args.push_back(impl ? spmd::TensorArg{impl->global, impl->spec} : spmd::TensorArg{});
  std::vector<spmd::AttrValue> attrs;
  for (const AttrRef& attr : attrs_) attrs.push_back(rule_value(attr));
  spmd::RuleArgs rule{op_, mesh_, args, slots_, attrs, flat, ranges};
  if (variant_ == Variant::inplace) {
    rule.pinned.resize(args.size());
    for (const AliasDef& alias : op_.aliases) {
      const SlotRange& slot = slots_[static_cast<size_t>(alias.input)];
      for (size_t i = 0; alias.kind == AliasDef::Kind::inplace && i < slot.count; ++i) rule.pinned[slot.first + i] = true;
    }
  }
  plan.fallback = !spmd::has_rule(op_) && rank_.policies.fallback == FallbackPolicy::replicate;
  spmd::RuleResult result = plan.fallback ? spmd::infer_replicated(rule) : spmd::infer(rule);
  for (size_t slot = 0; slot < ranges.size(); ++slot) result.absent.insert(result.absent.end(), ranges[slot].count, spmd::is_absent_output(rule, slot));
  return result;
}

const CallPlan& DistCall::make_plan(uint64_t hash, const MetaSink& metas, const std::function<void()>& dense) {
  CallPlan plan;
  plan.mesh = mesh_;
  std::vector<Meta> flat;
  for (const auto& slot : metas.slots) {
    plan.output_slots.push_back({flat.size(), slot.size()});
    flat.insert(flat.end(), slot.begin(), slot.end());
  }
  for (const Meta& meta : flat) checked_bytes(meta, ctx_.op);  // on every rank alike, before any piece is made
  const spmd::RuleResult rule = layout_ != nullptr ? given_layout(flat) : infer_rule(plan.output_slots, flat, plan);
  plan.reduce_axes = rule.reduce_axes;
  plan.relayout = rule.relayout;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    for (size_t i = 0; i < slots_[slot].count; ++i) {
      InputPlan input;
      input.slot = static_cast<int>(slot);
      if (const DistTensorImpl* impl = tensors_[first(slot) + i]) {
        input.spec = impl->spec;
        input.want = DistSpec::make(rule.inputs[first(slot) + i]);
        input.shape_only = (op_.no_need_buffer >> slot & 1u) != 0;
        if (!same_value(impl->global.dtype, input.spec, input.want) && !input.shape_only) input.move = plan_reshard(impl->global, input.spec, input.want);
      }
      plan.inputs.push_back(std::move(input));
    }
  }
  for (size_t o = 0; o < flat.size(); ++o) {
    const bool absent = o < rule.absent.size() && rule.absent[o];
    OutputPlan& output = plan.outputs.emplace_back();
    output.global = flat[o];
    if (!absent) output.spec = DistSpec::make(rule.outputs[o]);
  }
  plan_dynamic(plan);
  if (plan.relayout) {
    plan.inputs[0].move = plan_relayout(tensors_[0]->global, plan.inputs[0].spec, flat[0].dims, plan.outputs[0].spec);
  }
  plan_aliases(plan);
  if (!plan.reduce_axes.empty() && !plan.relayout) count_kernel(plan, dense);
  for (const InputPlan& input : plan.inputs) plan.bytes += input.move ? input.move->bytes : 0;
  for (const OutputPlan& output : plan.outputs) plan.bytes += output.write_back ? output.write_back->bytes : 0;
  plan.bytes += plan.row_count_bytes + plan.kernel_bytes;
  plan.checked = plan.fallback || plan.exchanges_rows || plan.kernel_bytes != 0 || plan.kernel_untold;
  for (const InputPlan& input : plan.inputs) plan.checked = plan.checked || input.move;
  for (const OutputPlan& output : plan.outputs) plan.checked = plan.checked || output.alias >= 0;
  bind(plan);
  return cache_.insert(key_, hash, std::move(plan));
}

/// The ranks of the world need to tell each other unless each of them computes all rows.
void DistCall::plan_dynamic(CallPlan& plan) const {
  size_t count = 0;
  for (size_t slot = 0; slot < plan.output_slots.size(); ++slot) {
    if ((op_.dynamic_outputs >> slot & 1u) == 0) continue;
    OutputPlan& output = plan.outputs[plan.output_slots[slot].first];
    output.dynamic = true;
    ++count;
    plan.exchanges_rows = plan.exchanges_rows || !output.spec->axes(0).empty() || mesh_->size() != rank_.world().size();
  }
  if (plan.exchanges_rows) plan.row_count_bytes = gather_bytes(rank_, count * sizeof(uint64_t));
}

void DistCall::plan_aliases(CallPlan& plan) {
  for (const AliasDef& alias : op_.aliases) {
    const SlotRange& from = slots_[static_cast<size_t>(alias.input)];
    const SlotRange& to = plan.output_slots[static_cast<size_t>(alias.output)];
    if (alias.kind == AliasDef::Kind::inplace && variant_ != Variant::inplace) continue;
    if (from.count != to.count && from.count != 0) {
      fail(ErrorCode::internal, "[{}] has {} results for {} tensors of '{}' that share their buffers; its infer_meta function is wrong", ctx_.op,
           to.count, from.count, op_.inputs[static_cast<size_t>(alias.input)].name);
    }
    for (size_t k = 0; k < to.count; ++k) plan_alias(plan, alias, from.count == 0 ? kAbsent : from.first + k, to.first + k);
  }
}

void DistCall::plan_alias(CallPlan& plan, const AliasDef& alias, size_t i, size_t o) {
  const bool in_place = alias.kind == AliasDef::Kind::inplace;
  OutputPlan& output = plan.outputs[o];
  // In the in-place variant a pair that is both a view and in-place counts as in-place.
  if (!in_place && output.alias >= 0) return;
  output.kind = alias.kind;
  output.write_back = nullptr;
  const DistTensorImpl* x = i == kAbsent ? nullptr : tensors_[i];
  output.alias = i == kAbsent ? -1 : static_cast<int>(i);
  if (x == nullptr) {
    output.spec = nullptr;  // an absent optional stays absent
    return;
  }
  const bool moved = plan.inputs[i].move != nullptr;
  const bool adopts = rank_.policies.inplace == InplacePolicy::adopt;
  if (in_place && op_.elementwise && !(output.global.dims == x->global.dims)) {
    fail(ErrorCode::shape_mismatch, "[{}] the result has shape {}, but its target is {}: an in-place op cannot grow its target by broadcasting; use {} instead",
         ctx_.op, to_string(output.global.dims), argument_text(op_.inputs[static_cast<size_t>(alias.input)].name, *x), op_.name);
  }
  const bool same = output.global == x->global;
  if (in_place && same && same_value(x->global.dtype, output.spec, x->spec)) output.spec = x->spec;
  const bool rewritten = in_place && same && !reinterprets(alias.output);
  if (rewritten && adopts && output.spec != x->spec && rank_.policies.view == ViewPolicy::sync) output.adopted = plan_reshard(x->global, x->spec, output.spec);
  const bool back = (rewritten && !adopts && (moved || output.spec != x->spec)) ||
                    (alias.kind == AliasDef::Kind::written_view && moved && rank_.policies.view != ViewPolicy::temporary);
  if (!back) return;
  if (loses_values(output.global.dtype, *output.spec, *x->spec)) fail_loses(i);
  output.write_back = plan_reshard(output.global, output.spec, x->spec);
}

void DistCall::fail_loses(size_t i) const {
  size_t slot = 0;
  while (i >= first(slot) + slots_[slot].count) ++slot;
  fail(ErrorCode::layout,
       "[{}] the result cannot be written back into argument '{}' ({}): what is pending with any or all is 0 or 1 once it is reduced, and a pending "
       "average of integers may wrap around, so that values would be lost; reshard it to a layout without them first, or use {}",
       ctx_.op, op_.inputs[slot].name, tensors_[i]->describe(), op_.name);
}

void DistCall::bind(CallPlan& plan) const {
  const auto at = mesh_->coordinate(rank_.id());
  plan.active = at.has_value();
  if (!plan.active) return;
  // Reductions are done from the last axis to the first, so the last one decides what this rank contributes.
  for (int axis = 0; layout_ != nullptr && axis < mesh_->rank(); ++axis) {
    const std::optional<ReduceType> type = layout_->partial(axis);
    if (type && *type != ReduceType::avg && (*at)[static_cast<size_t>(axis)] != 0) plan.identity = type;
  }
  bind_pieces(plan, *at);
}

/// The boxes and local shapes of the rank at a place of the mesh.
void DistCall::bind_pieces(CallPlan& plan, const Coordinate& at) const {
  plan.input_boxes.clear();
  plan.input_dims.clear();
  plan.output_boxes.clear();
  plan.output_dims.clear();
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (plan.inputs[i].want == nullptr) {
      plan.input_boxes.emplace_back();
      plan.input_dims.emplace_back();
      continue;
    }
    const Dims& global = tensors_[i]->global.dims;
    const Piece piece = local_piece(plan.inputs[i].want->layout(), global, at);
    plan.input_boxes.push_back({global, piece.begin});
    plan.input_dims.push_back(piece.dims);
  }
  for (const OutputPlan& output : plan.outputs) {
    if (output.spec == nullptr) {
      plan.output_boxes.emplace_back();
      plan.output_dims.emplace_back();
      continue;
    }
    const Piece piece = local_piece(output.spec->layout(), output.global.dims, at);
    plan.output_boxes.push_back({output.global.dims, piece.begin});
    plan.output_dims.push_back(piece.dims);
  }
}

bool DistCall::writes(const OutputPlan& output) const {
  if (output.alias < 0 || output.spec == nullptr || output.kind == AliasDef::Kind::view) return false;
  if (output.kind == AliasDef::Kind::written_view) return true;
  // A change of metadata alone is no write.
  const auto o = static_cast<size_t>(&output - plan_->outputs.data());
  size_t slot = 0;
  while (o >= plan_->output_slots[slot].first + plan_->output_slots[slot].count) ++slot;
  return !reinterprets(static_cast<int>(slot));
}

bool DistCall::reinterprets(int output_slot) const {
  return std::any_of(op_.aliases.begin(), op_.aliases.end(),
                     [&](const AliasDef& alias) { return alias.kind == AliasDef::Kind::view && alias.output == output_slot; });
}

void DistCall::prepare() {
  for (const OutputPlan& output : plan_->outputs) {
    if (!writes(output)) continue;
    const DistTensorImpl& x = *tensors_[static_cast<size_t>(output.alias)];
    if (rank_.policies.view == ViewPolicy::temporary && x.value.storage()->detachment() != nullptr) part(*x.value.storage());
    if (output.kind != AliasDef::Kind::inplace) continue;
    // Whether pieces change their shape differs from rank to rank; whether the tensor does, not.
    const bool new_buffer = !(output.global == x.global) || (!output.write_back && output.spec != x.spec);
    local_.replace_targets = local_.replace_targets || new_buffer;
  }
  if (checks_promoted()) {
    for (const Promoted& promoted : extras_->promoted) check_replicated(promoted);
  }
  if (extras_) extras_->stale.settle(rank_.policies.view);
  // From here on kernels and infer_meta see local pieces; before, user errors come from the global metas.
  ctx_.local = &local_;
  if (op_.random) local_.random = rank_.generator.draw();
  locals_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const InputPlan& input = plan_->inputs[i];
    if (tensors_[i] == nullptr) locals_.emplace_back();
    else if (input.shape_only && plan_->active) locals_.push_back(shape_of_piece(i));
    else if (!input.move) locals_.push_back(tensors_[i]->value);
    else locals_.push_back(move_input(i));
  }
  results_.resize(plan_->outputs.size());
  local_.inputs = plan_->input_boxes;
  local_.outputs = plan_->output_boxes;
  if (layout_ != nullptr) local_.output_dims = plan_->output_dims;
  if (ctx_.recorder != nullptr) extras().captured_inputs = locals_;
  if (!plan_->reduce_axes.empty() && plan_->active && ctx_.recorder == nullptr) {
    extras().reducer = std::make_unique<MeshReducer>(rank_, plan_->mesh, plan_->reduce_axes, op_.name);
    local_.reducer = extras_->reducer.get();
  }
}

/// The shape that an input of which no element is read has in the layout that is computed in.
DenseTensor DistCall::shape_of_piece(size_t i) const {
  DenseTensor shape(tensors_[i]->value.storage(), Meta{plan_->input_dims[i], tensors_[i]->global.dtype});
  shape.set_symbol(tensors_[i]->value.symbol());
  return shape;
}

void DistCall::capture() {
  if (plan_->relayout) return;  // the move is all that there is
  std::vector<const DenseTensor*> inputs;
  for (const DenseTensor& input : extras_->captured_inputs) inputs.push_back(input.defined() ? &input : nullptr);
  const auto any = std::find_if(locals_.begin(), locals_.end(), [](const DenseTensor& input) { return input.defined(); });
  const Device device = any != locals_.end() ? any->device() : !results_.empty() && results_[0].defined() ? results_[0].device() : kCpu;
  std::vector<RecordedOutput> outputs;
  for (const OutputPlan& output : plan_->outputs) {
    RecordedOutput& out = outputs.emplace_back();
    out.present = output.spec != nullptr;
    if (!out.present) continue;
    // What is written back from another layout is made beside its target, which is written once, by that.
    const bool beside = output.write_back != nullptr && plan_->inputs[static_cast<size_t>(output.alias)].move == nullptr;
    const bool replaced = output.kind == AliasDef::Kind::inplace && writes(output) && (local_.replace_targets || beside);
    out.meta = output.global;
    out.spec = output.spec;
    out.device = device;
    if (output.alias >= 0 && !replaced) out.shares = output.alias;
    out.written = out.shares >= 0 && writes(output);
  }
  std::vector<Attr> attrs;
  for (const AttrRef& attr : attrs_) attrs.push_back(std::visit([](const auto* value) { return Attr(*value); }, attr));
  extras_->symbols = ctx_.recorder->call({op_, variant_ == Variant::inplace, inputs, slots_, std::move(attrs), layout_, outputs, plan_->output_slots, local_.random.offset});
}

DenseTensor DistCall::move_input(size_t i) const {
  const InputPlan& input = plan_->inputs[i];
  DenseTensor moved = execute_reshard(rank_, *input.move, tensors_[i]->value, {op_.name, op_.inputs[static_cast<size_t>(input.slot)].name});
  if (MovedInputs* const wanted = MovedInputs::current()) wanted->add(tensors_[i], input.want, moved);
  return moved;
}

void DistCall::reinterpret_local() {
  DenseTensor piece = locals_[0].reinterpret({plan_->output_dims[0], plan_->outputs[0].global.dtype});
  if (variant_ == Variant::inplace) locals_[0] = std::move(piece);
  else results_[0] = std::move(piece);
}

void DistCall::poison() {
  if (!started_) return;
  for (const OutputPlan& output : plan_->outputs) {
    if (writes(output)) tensors_[static_cast<size_t>(output.alias)]->value.storage()->poison(std::current_exception(), ctx_.op);
  }
}

Tensor DistCall::output(size_t o) {
  const size_t i = plan_->output_slots[o].first;
  const OutputPlan& output = plan_->outputs[i];
  if (output.spec == nullptr) return {};
  mark(results_[i], i);
  return make_dist(rank_, output.dynamic ? extras_->dynamic[i] : output.global, output.spec, std::move(results_[i]));
}

std::vector<Tensor> DistCall::outputs(size_t o) {
  std::vector<Tensor> all;
  const SlotRange range = plan_->output_slots[o];
  for (size_t i = range.first; i < range.first + range.count; ++i) {
    mark(results_[i], i);
    all.push_back(make_dist(rank_, plan_->outputs[i].global, plan_->outputs[i].spec, std::move(results_[i])));
  }
  return all;
}

void DistCall::record_call() {
  if (rank_.trace_calls) {
    TraceEvent event;
    event.name = event.op = ctx_.op;
    event.bytes = plan_->bytes + (extras_ ? extras_->moment_bytes : 0);
    event.begin_ns = begin_ns_;
    event.end_ns = now_ns();
    rank_.trace.record(event);
  }
  if (rank_.dry) cache_.dry_calls.add(ctx_.op, describe_pieces(op_, *plan_), rank_.stats(), before_);
  if (!cache_.observer) return;
  CallRecord record = describe(op_, ctx_.op, *plan_, rank_.policies.view);
  if (extras_) {
    record.bytes += extras_->moment_bytes;
    if (!extras_->moment_text.empty()) record.moves += (record.moves.empty() ? "" : ";") + extras_->moment_text;
  }
  cache_.observer(record);
}

}  // namespace shard::call
