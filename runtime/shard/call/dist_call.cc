#include "shard/call/dist_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "shard/call/dense_call.h"
#include "shard/call/exchange.h"
#include "shard/call/failed_call.h"
#include "shard/call/mesh_reducer.h"
#include "shard/call/resharded_inputs.h"
#include "shard/dist/view_use.h"
#include "shard/kernels/registry.h"
#include "shard/reshard/execute.h"

namespace shard::call {

DistCall::DistCall(const OpDef& op, Variant variant)
    : op_(op), rank_(current_rank()), cache_(PlanCache::of(rank_)),
      ctx_(context((variant == Variant::inplace ? op.inplace_name : op.name).data())), variant_(variant) {
  locals_ = cache_.take_list();
  results_ = cache_.take_list();
  traced_ = tracer_ == nullptr && (rank_.dry || rank_.trace_calls || cache_.observer);
  if (traced_) begin_ns_ = now_ns();
  if (traced_ && rank_.dry) before_ = rank_.stats();
  key_.push_back(reinterpret_cast<uintptr_t>(&op));
  key_.push_back(static_cast<uint64_t>(variant) | plan_key_of(rank_.policies) << 8);
}

void DistCall::in(LayoutArg layout) {
  if (layout.spec == nullptr)
    fail(ErrorCode::layout, "[{}] the layout is null; give one, such as DistSpec::replicated(mesh, dims), or none",
         op_.name);
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
      fail(ErrorCode::undefined, "[{}] argument '{}' is an undefined tensor; give a value\n  in the call {}", ctx_.op,
           name, call_text());
    }
    tensors_.push_back(nullptr);
    key_.push_back(0);
    return;
  }
  if (tracer_ != nullptr) tracer_->adopt(tensor);
  if (!tensor.is_dist()) return promote(tensor, name);
  auto& impl = static_cast<DistTensorImpl&>(tensor.get());
  if (impl.owner != &rank_) {
    fail(ErrorCode::wrong_rank,
         "[{}] {} belongs to rank {}, but rank {} of {} makes the call; each rank uses its own tensors", ctx_.op,
         argument_text(name, impl), impl.owner->id(), rank_.id(),
         &impl.owner->world() == &rank_.world() ? "the same world" : "another world");
  }
  if (impl.value.symbol() != 0 && tracer_ == nullptr) fail_escaped(ctx_.op, argument_text(name, impl));
  if (mesh_ == nullptr) {
    mesh_ = impl.spec->mesh();
    if (extras_) place_promoted();
  }
  if (impl.spec->mesh() != mesh_) {
    fail(ErrorCode::layout,
         "[{}] {} is on another mesh than the arguments before it; all tensors of a call are on one mesh: reshard it "
         "to a layout on {}\n"
         "  in the call {}",
         ctx_.op, argument_text(name, impl), mesh_->describe(), call_text());
  }
  Storage& storage = *impl.value.storage();
  const ViewPolicy policy = rank_.policies.view;
  try {
    // A stale argument is refreshed once the call is allowed.
    if (policy != ViewPolicy::strict && storage.stale()) extras().stale.add(storage, policy);
    else storage.check_read();
    if (storage.state() == Storage::State::shape_only && (op_.no_need_buffer >> (slots_.size() - 1) & 1u) == 0)
      fail_no_data(ctx_, impl.value, name);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::poisoned) report_unread();
    const std::string_view advice = policy == ViewPolicy::strict ? view_advice(storage, error.code(), policy) : "";
    fail(error.code(), "[{}] {}: {}{}\n  in the call {}", ctx_.op, argument_text(name, impl), error.what(), advice,
         call_text());
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
         "[{}] {} is a plain tensor, but others are distributed. Make it distributed with distribute(tensor, spec), or "
         "the others plain with "
         "full_tensor(tensor); under PromotionPolicy::replicate it counts as replicated\n  in the call {}",
         ctx_.op, argument_text(name, tensor.get()), call_text());
  }
  for (const AliasDef& alias : op_.aliases) {
    if (alias.input != slot || (alias.kind == AliasDef::Kind::inplace && variant_ != Variant::inplace)) continue;
    fail(ErrorCode::layout,
         "[{}] {} is a plain tensor whose buffer output '{}' would share: the result of a distributed call cannot be "
         "in it, so "
         "PromotionPolicy::replicate does not apply. Make it distributed with distribute(tensor, spec)\n  in the call "
         "{}",
         ctx_.op, argument_text(name, tensor.get()), op_.outputs[static_cast<size_t>(alias.output)].name, call_text());
  }
  try {
    check_read(*tensor.get().value.storage(), rank_.policies.view);
  } catch (const Error&) {
    report_unread();
    throw;
  }
  extras().promoted.push_back({tensors_.size(), key_.size(), name, tensor, tensor});
  tensors_.push_back(nullptr);
  key_tensor(nullptr, tensor.meta());
  if (mesh_ != nullptr) place_promoted();
}

void DistCall::report_unread() {
  if (tracer_ != nullptr) return;
  CommQueue& queue = rank_.comm_queue();
  const uint64_t call = queue.calls_done() + 1;
  queue.set_calls_done(call);
  report_failed_call(rank_, call, std::current_exception(), "\n  in the call " + call_text());
}

void DistCall::place_promoted() {
  for (Promoted& promoted : extras_->promoted) {
    if (promoted.tensor.is_dist()) continue;
    const Meta meta = promoted.tensor.meta();
    const DistSpec* const spec = DistSpec::replicated(mesh_, meta.dims.rank());
    const bool here = mesh_->coordinate(rank_.id()).has_value();
    DenseTensor value = here ? promoted.tensor.get().value : absent_value(meta);
    if (tracer_ != nullptr) {
      const TracedOutput to{.meta = meta, .spec = spec, .device = promoted.tensor.device()};
      value.set_symbol(tracer_->convert(Tracer::Conversion::distribute, promoted.tensor.get().value, to, -1));
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
  const Tensor host = has_data ? to_device(promoted.plain, kCpu) : promoted.plain;
  const uint64_t hash[] = {has_data ? hash_bytes(shape, host.get().value.raw(), meta.bytes()) : shape};
  const std::vector<uint64_t> hashes = gather_words(rank_, hash, {op_.name, promoted.name});
  const int first = mesh_->processes().front();
  std::vector<int> others;
  for (int process : mesh_->processes()) {
    if (hashes[static_cast<size_t>(process)] != hashes[static_cast<size_t>(first)]) others.push_back(process);
  }
  if (others.empty()) return;
  fail(ErrorCode::layout,
       "[{}] {} was promoted to replicated, but is not the same on all ranks of {}: ranks {} have another value than "
       "rank {}. Give all ranks the "
       "same value, or make it distributed with distribute(tensor, spec, from_rank({}))",
       ctx_.op, argument_text(promoted.name, promoted.plain.get()), mesh_->describe(), fmt::join(others, ", "), first,
       first);
}

std::string DistCall::call_text() const {
  std::string text;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    std::string tensors;
    for (size_t i = first(slot); i < std::min(first(slot) + slots_[slot].count, tensors_.size()); ++i) {
      const DistTensorImpl* impl = tensors_[i];
      tensors += fmt::format("{}{}", i == first(slot) ? "" : ", ",
                             impl ? fmt::format("{} {}", to_string(impl->global), impl->spec->text()) : "none");
    }
    if (op_.inputs[slot].kind == SlotDef::Kind::list) tensors = "{" + tensors + "}";
    if (!tensors.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", op_.inputs[slot].name, tensors);
  }
  return fmt::format("{}({}) on {}", ctx_.op, text, mesh_ == nullptr ? "no mesh yet" : mesh_->describe());
}

void DistCall::rethrow(const Error& error) const {
  // An error of another rank does not get the text of this call.
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

void DistCall::set(size_t output, std::vector<DenseTensor> values) {
  const size_t count = plan_->output_slots[output].count;
  if (values.size() != count) {
    fail(ErrorCode::internal, "[{}] computed {} pieces of '{}', but there are {}; its infer_meta function is wrong",
         ctx_.op, values.size(), op_.outputs[output].name, count);
  }
  for (size_t i = 0; i < values.size(); ++i) results_[plan_->output_slots[output].first + i] = std::move(values[i]);
}

void DistCall::check_kernel() const {
  std::optional<Device> place;
  for (const AttrRef& attr : attrs_) {
    const auto* const given = std::get_if<const Device*>(&attr);
    if (given == nullptr && !std::holds_alternative<const std::optional<Device>*>(attr)) continue;
    // Only the dense function knows which of several devices it takes.
    if (!tensors_.empty() || given == nullptr || place) return;
    place = **given;
  }
  const DenseTensor* first = nullptr;
  for (const DistTensorImpl* impl : tensors_) {
    if (impl != nullptr) gather_device(ctx_, impl->value, first);
  }
  const Device device = place ? *place : first == nullptr ? kCpu : first->device();
  for (const DTypeSource& source : op_.kernel_dtypes) {
    const auto index = static_cast<size_t>(source.index);
    std::optional<DType> dtype;
    switch (source.kind) {
      case DTypeSource::Kind::constant: dtype = source.constant; break;
      case DTypeSource::Kind::input: {
        const SlotRange& slot = slots_[index];
        if (slot.count != 0 && tensors_[slot.first] != nullptr) dtype = tensors_[slot.first]->global.dtype;
        break;
      }
      case DTypeSource::Kind::attr: {
        if (const auto* given = std::get_if<const DType*>(&attrs_[index])) dtype = **given;
        else dtype = *std::get<const std::optional<DType>*>(attrs_[index]);
        break;
      }
    }
    if (dtype && source.to_complex) dtype = complex_dtype(ctx_, *dtype);
    if (dtype) return kernel_table(op_.kernel.data()).check(ctx_, device, *dtype);
  }
}

const CallPlan& DistCall::make_plan(uint64_t hash, const std::function<void()>& dense) {
  std::vector<spmd::TensorArg> inputs;
  std::vector<const Meta*> metas;
  for (const DistTensorImpl* impl : tensors_) {
    inputs.push_back(impl == nullptr ? spmd::TensorArg{} : spmd::TensorArg{impl->global, impl->spec});
    metas.push_back(impl == nullptr ? nullptr : &impl->global);
  }
  const OutputMetas outputs = infer_({ctx_, metas, slots_, attrs_});
  check_kernel();
  if (ctx_.launcher != nullptr && op_.dynamic_outputs != 0)
    fail_unbounded(ctx_, outputs.flat[static_cast<size_t>(std::countr_zero(op_.dynamic_outputs))]);
  const CallTypes types{
      op_, ctx_.op, variant_ == Variant::inplace, mesh_, inputs, slots_, attrs_, layout_, outputs.flat, outputs.slots};
  CallPlan plan = plan_call(types, rank_.policies, rank_.world());
  if (!plan.reduce_axes.empty() && !plan.relayout) count_kernel(plan, dense);
  bind_plan(plan, mesh_->coordinate(rank_.id()));
  plan.checks_rule = dense != nullptr && plan.active && !plan.relayout && layout_ == nullptr;
  return cache_.insert(key_, hash, std::move(plan));
}

void DistCall::check_rule() const {
  std::vector<Meta> shards = plan_->input_shards;
  std::vector<const Meta*> metas;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    // Only shapes are compared. The dtypes may differ, since some shards may be float32 and others
    // 16-bit.
    shards[i].dtype = plan_->inputs[i].global.dtype;
    metas.push_back(tensors_[i] == nullptr ? nullptr : &shards[i]);
  }
  std::vector<AttrRef> attrs(attrs_.begin(), attrs_.end());
  IntArray shape;
  if (op_.local_shape >= 0) {
    shape = local_shape(static_cast<size_t>(op_.local_shape_output));
    attrs[static_cast<size_t>(op_.local_shape)] = &shape;
  }
  const OutputMetas outputs = infer_({ctx_, metas, slots_, attrs});
  if (outputs.slots != plan_->output_slots) {
    fail(ErrorCode::internal,
         "[{}] has {} outputs on local shards and {} on the whole tensors; its placement rule is wrong", op_.name,
         outputs.flat.size(), plan_->outputs.size());
  }
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    const OutputPlan& output = plan_->outputs[o];
    const Meta computed = {outputs.flat[o].dims, plan_->output_shards[o].dtype};
    if (output.spec != nullptr && !output.dynamic && !(computed == plan_->output_shards[o]))
      fail_shape(output, computed, plan_->output_shards[o]);
  }
  plan_->checks_rule = false;
}

bool DistCall::writes(const OutputPlan& output) const {
  if (output.alias < 0 || output.spec == nullptr || output.kind == AliasDef::Kind::view) return false;
  if (output.kind == AliasDef::Kind::written_view) return true;
  // A change of metadata alone is not a write.
  const auto o = static_cast<size_t>(&output - plan_->outputs.data());
  size_t slot = 0;
  while (o >= plan_->output_slots[slot].first + plan_->output_slots[slot].count) ++slot;
  return !reinterprets(op_, slot);
}

void DistCall::prepare() {
  // From here on kernels and infer_meta see local shards. User errors were thrown before, from the
  // global metas.
  ctx_.local = &local_;
  local_.inputs = plan_->input_boxes;
  local_.outputs = plan_->output_boxes;
  if (plan_->checks_rule) [[unlikely]]
    check_rule();
  for (const OutputPlan& output : plan_->outputs) {
    if (!writes(output)) continue;
    const DistTensorImpl& x = *tensors_[static_cast<size_t>(output.alias)];
    if (rank_.policies.view == ViewPolicy::temporary && x.value.storage()->detachment() != nullptr)
      separate(*x.value.storage());
    if (output.kind != AliasDef::Kind::inplace) continue;
    // Whether the local shape changes differs from rank to rank, but whether the global shape
    // changes does not.
    const bool new_buffer = !(output.global == x.global) || (!output.write_back && output.spec != x.spec);
    local_.replace_targets = local_.replace_targets || new_buffer;
  }
  if (checks_promoted()) {
    for (const Promoted& promoted : extras_->promoted) check_replicated(promoted);
  }
  if (extras_) extras_->stale.settle(rank_.policies.view);
  if (op_.random) local_.random = rank_.generator.draw();
  locals_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const InputPlan& input = plan_->inputs[i];
    if (tensors_[i] == nullptr) locals_.emplace_back();
    else if (input.shape_only && plan_->active) locals_.push_back(local_shape_of(i));
    else if (!input.move) locals_.push_back(tensors_[i]->value);
    else locals_.push_back(move_input(i));
  }
  results_.resize(plan_->outputs.size());
  if (tracer_ != nullptr) extras().captured_inputs = locals_;
  if (!plan_->reduce_axes.empty() && plan_->active && tracer_ == nullptr) {
    extras().reducer = std::make_unique<MeshReducer>(rank_, plan_->mesh, plan_->reduce_axes, op_.name);
    local_.reducer = extras_->reducer.get();
  }
}

/// An argument of which the op reads only the shape: its storage with the local shape of the layout
/// that the op computes in.
DenseTensor DistCall::local_shape_of(size_t i) const {
  DenseTensor shape(tensors_[i]->value.storage(), plan_->input_shards[i]);
  shape.set_symbol(tensors_[i]->value.symbol());
  return shape;
}

void DistCall::convert_results(const Float32Call& converted) {
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    const OutputPlan& output = plan_->outputs[o];
    DenseTensor& result = output.alias >= 0 && output.kind == AliasDef::Kind::inplace
                              ? locals_[static_cast<size_t>(output.alias)]
                              : results_[o];
    result = converted.output(o, result);
  }
}

void DistCall::capture() {
  if (plan_->relayout) return;  // the reshard is all that is recorded
  std::vector<const DenseTensor*> inputs;
  for (const DenseTensor& input : extras_->captured_inputs) inputs.push_back(input.defined() ? &input : nullptr);
  const auto any =
      std::find_if(locals_.begin(), locals_.end(), [](const DenseTensor& input) { return input.defined(); });
  const Device device = any != locals_.end()                         ? any->device()
                        : !results_.empty() && results_[0].defined() ? results_[0].device()
                                                                     : kCpu;
  std::vector<TracedOutput> outputs;
  for (const OutputPlan& output : plan_->outputs) {
    TracedOutput& out = outputs.emplace_back();
    out.present = output.spec != nullptr;
    if (!out.present) continue;
    // A result that is written back from another layout is computed in a buffer of its own. Only
    // the write-back writes the target, once.
    const bool beside =
        output.write_back != nullptr && plan_->inputs[static_cast<size_t>(output.alias)].move == nullptr;
    const bool replaced =
        output.kind == AliasDef::Kind::inplace && writes(output) && (local_.replace_targets || beside);
    out.meta = output.global;
    out.spec = output.spec;
    out.device = device;
    if (output.alias >= 0 && !replaced) out.shares = output.alias;
    out.written = out.shares >= 0 && writes(output);
  }
  std::vector<Attr> attrs;
  for (const AttrRef& attr : attrs_) attrs.push_back(std::visit([](const auto* value) { return Attr(*value); }, attr));
  extras_->symbols = tracer_->call({op_, variant_ == Variant::inplace, inputs, slots_, std::move(attrs), layout_,
                                    outputs, plan_->output_slots, local_.random.offset});
}

DenseTensor DistCall::move_input(size_t i) const {
  const InputPlan& input = plan_->inputs[i];
  DenseTensor moved = execute_reshard(rank_, *input.move, tensors_[i]->value,
                                      {op_.name, op_.inputs[static_cast<size_t>(input.slot)].name});
  if (ReshardedInputs* const wanted = ReshardedInputs::current()) wanted->add(tensors_[i], input.want, moved);
  return moved;
}

void DistCall::reinterpret_local() {
  DenseTensor piece = locals_[0].reinterpret(plan_->output_shards[0]);
  if (variant_ == Variant::inplace) locals_[0] = std::move(piece);
  else results_[0] = std::move(piece);
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
  if (rank_.dry) cache_.dry_calls.add(ctx_.op, describe_shards(op_, *plan_), rank_.stats(), before_);
  if (!cache_.observer) return;
  CallRecord record = describe(op_, ctx_.op, *plan_, rank_.policies.view);
  if (extras_) {
    record.bytes += extras_->moment_bytes;
    if (!extras_->moment_text.empty()) record.reshards += (record.reshards.empty() ? "" : ";") + extras_->moment_text;
  }
  cache_.observer(record);
}

}  // namespace shard::call
