#include "shard/call/call_args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "shard/call/exchange.h"
#include "shard/call/failed_call.h"
#include "shard/dist/view_use.h"

namespace shard::call {

CallArgs::CallArgs(const OpDef& definition, bool in_place)
    : op(definition), rank(current_rank()), cache(PlanCache::of(rank)),
      ctx(context((in_place ? op.inplace_name : op.name).data())), inplace(in_place) {
  key.push_back(reinterpret_cast<uintptr_t>(&op));
  key.push_back(static_cast<uint64_t>(inplace) | plan_key_of(rank.policies) << 8);
}

void CallArgs::add(LayoutArg requested) {
  if (requested.spec == nullptr)
    fail(ErrorCode::layout, "[{}] the layout is null; pass one, such as DistSpec::replicated(mesh, dims), or none",
         op.name);
  layout = requested.spec;
  mesh = layout->mesh();
  key.push_back(reinterpret_cast<uintptr_t>(layout));
}

void CallArgs::add_slot(const Tensor& tensor) {
  const bool optional = op.inputs[slots.size()].kind == SlotDef::Kind::optional;
  slots.push_back({tensors.size(), 1});
  add_tensor(tensor, optional);
}

void CallArgs::add_slot(const std::vector<Tensor>& list) {
  slots.push_back({tensors.size(), list.size()});
  key.push_back(list.size());
  for (const Tensor& tensor : list) add_tensor(tensor, false);
}

void CallArgs::add_tensor(const Tensor& tensor, bool optional) {
  const std::string_view name = op.inputs[slots.size() - 1].name;
  if (!tensor.defined()) {
    if (!optional) {
      fail(ErrorCode::undefined, "[{}] argument '{}' is an undefined tensor; pass a tensor\n  in the call {}", ctx.op,
           name, text());
    }
    tensors.push_back(nullptr);
    key.push_back(0);
    return;
  }
  if (tracer != nullptr) tracer->adopt(tensor);
  if (!tensor.is_dist()) return promote(tensor, name);
  auto& impl = static_cast<DistTensorImpl&>(tensor.get());
  if (impl.owner != &rank) {
    fail(ErrorCode::wrong_rank,
         "[{}] {} belongs to rank {}, but rank {} of {} makes the call; each rank uses its own tensors", ctx.op,
         argument_text(name, impl), impl.owner->id(), rank.id(),
         &impl.owner->world() == &rank.world() ? "the same world" : "another world");
  }
  if (impl.value.symbol() != 0 && tracer == nullptr) fail_escaped(ctx.op, argument_text(name, impl));
  if (mesh == nullptr) {
    mesh = impl.spec->mesh();
    if (extras_) place_promoted();
  }
  if (impl.spec->mesh() != mesh) {
    fail(ErrorCode::layout,
         "[{}] {} is on another mesh than the arguments before it; all tensors of a call are on one mesh: reshard it "
         "to a layout on {}\n"
         "  in the call {}",
         ctx.op, argument_text(name, impl), mesh->describe(), text());
  }
  tensors.push_back(&impl);
  add_tensor_key(impl.spec, impl.global);
}

inline void CallArgs::add_tensor_key(const DistSpec* spec, const Meta& meta) {
  key.push_back(reinterpret_cast<uintptr_t>(spec));
  key.push_back(static_cast<uint64_t>(meta.dtype) << 8 | static_cast<uint64_t>(meta.dims.rank()));
  for (int64_t size : meta.dims) key.push_back(static_cast<uint64_t>(size));
}

void CallArgs::promote(const Tensor& tensor, std::string_view name) {
  const auto slot = static_cast<int>(slots.size()) - 1;
  if (rank.policies.promotion == PromotionPolicy::error) {
    fail(ErrorCode::layout,
         "[{}] {} is a plain tensor, but others are distributed. Make it distributed with distribute(tensor, spec), or "
         "the others plain with "
         "full_tensor(tensor); under PromotionPolicy::replicate it counts as replicated\n  in the call {}",
         ctx.op, argument_text(name, tensor.get()), text());
  }
  for (const AliasDef& alias : op.aliases) {
    if (alias.input != slot || (alias.kind == AliasDef::Kind::inplace && !inplace)) continue;
    fail(ErrorCode::layout,
         "[{}] {} is a plain tensor whose buffer output '{}' would share: the result of a distributed call cannot be "
         "in it, so "
         "PromotionPolicy::replicate does not apply. Make it distributed with distribute(tensor, spec)\n  in the call "
         "{}",
         ctx.op, argument_text(name, tensor.get()), op.outputs[static_cast<size_t>(alias.output)].name, text());
  }
  make_extras().promoted.push_back({tensors.size(), key.size(), name, tensor, tensor});
  tensors.push_back(nullptr);
  add_tensor_key(nullptr, tensor.meta());
  if (mesh != nullptr) place_promoted();
}

void CallArgs::check_readable() {
  for (size_t p = 0; extras_ && p < extras_->promoted.size(); ++p) {
    try {
      check_read(*extras_->promoted[p].plain.get().value.storage(), rank.policies.view);
    } catch (const Error&) {
      report_unread();
      throw;
    }
  }
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    for (size_t i = first(slot); i < first(slot) + slots[slot].count; ++i) {
      if (tensors[i] != nullptr) check_readable(*tensors[i], static_cast<int>(slot));
    }
  }
}

void CallArgs::check_readable(DistTensorImpl& impl, int slot) {
  Storage& storage = *impl.value.storage();
  if (!storage.needs_checks() && storage.state() != Storage::State::shape_only) [[likely]]
    return;
  const ViewPolicy policy = rank.policies.view;
  try {
    // A stale argument is refreshed once the call is allowed.
    if (policy != ViewPolicy::strict && storage.stale()) make_extras().stale.add(storage, policy);
    else storage.check_read();
    if (storage.state() == Storage::State::shape_only && (op.no_need_buffer >> slot & 1) == 0)
      fail_no_data(ctx, impl.value, name_of(slot));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::poisoned) report_unread();
    const std::string_view advice = policy == ViewPolicy::strict ? view_advice(storage, error.code(), policy) : "";
    fail(error.code(), "[{}] {}: {}{}\n  in the call {}", ctx.op, argument_text(name_of(slot), impl), error.what(),
         advice, text());
  }
}

void CallArgs::report_unread() const {
  if (tracer == nullptr) report_failure(rank.comm_queue().calls_done() + 1);
}

void CallArgs::report_failure(uint64_t call) const {
  rank.comm_queue().set_calls_done(call);
  if (ctx.launcher != nullptr) return;
  mark_maybe_poisoned(call);
  report_failed_call(rank, call, std::current_exception(), "\n  in the call " + text());
}

void CallArgs::place_promoted() {
  for (Promoted& promoted : extras_->promoted) {
    if (promoted.tensor.is_dist()) continue;
    const Meta meta = promoted.tensor.meta();
    const DistSpec* const spec = DistSpec::replicated(mesh, meta.dims.rank());
    const bool here = mesh->coordinate(rank.id()).has_value();
    DenseTensor value = here ? promoted.tensor.get().value : absent_value(meta);
    if (tracer != nullptr) {
      const TracedOutput to{.meta = meta, .spec = spec, .device = promoted.tensor.device()};
      value.set_symbol(tracer->convert(Tracer::Conversion::distribute, promoted.tensor.get().value, to, -1));
    }
    promoted.tensor = make_dist(rank, meta, spec, std::move(value));
    tensors[promoted.place] = &dist_impl(promoted.tensor);
    key[promoted.key] = reinterpret_cast<uintptr_t>(spec);
    cache.count_promoted();
  }
}

void CallArgs::check_promoted() const {
  for (const Promoted& promoted : extras_->promoted) {
    const Meta& meta = promoted.plain.meta();
    KeyWords words;
    words.push_back(static_cast<uint64_t>(meta.dtype));
    for (int64_t size : meta.dims) words.push_back(static_cast<uint64_t>(size));
    const uint64_t shape = hash_words(words);
    const bool has_data = promoted.plain.get().value.has_data();
    const Tensor host = has_data ? to_device(promoted.plain, kCpu) : promoted.plain;
    const uint64_t hash[] = {has_data ? hash_bytes(shape, host.get().value.raw(), meta.bytes()) : shape};
    const std::vector<uint64_t> hashes = gather_words(rank, hash, {op.name, promoted.name});
    const int one = mesh->processes().front();
    std::vector<int> others;
    for (int process : mesh->processes()) {
      if (hashes[static_cast<size_t>(process)] != hashes[static_cast<size_t>(one)]) others.push_back(process);
    }
    if (others.empty()) continue;
    fail(ErrorCode::layout,
         "[{}] {} was promoted to replicated, but is not the same on all ranks of {}: ranks {} have another value than "
         "rank {}. Pass the same value on all ranks, or make it distributed with distribute(tensor, spec, "
         "from_rank({}))",
         ctx.op, argument_text(promoted.name, promoted.plain.get()), mesh->describe(), fmt::join(others, ", "), one,
         one);
  }
}

std::string CallArgs::text() const {
  std::string all;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    std::string each;
    for (size_t i = first(slot); i < std::min(first(slot) + slots[slot].count, tensors.size()); ++i) {
      const DistTensorImpl* impl = tensors[i];
      each += fmt::format("{}{}", i == first(slot) ? "" : ", ",
                          impl ? fmt::format("{} {}", to_string(impl->global), impl->spec->text()) : "none");
    }
    if (op.inputs[slot].kind == SlotDef::Kind::list) each = "{" + each + "}";
    if (!each.empty()) all += fmt::format("{}{}: {}", all.empty() ? "" : ", ", op.inputs[slot].name, each);
  }
  return fmt::format("{}({}) on {}", ctx.op, all, mesh == nullptr ? "no mesh yet" : mesh->describe());
}

void CallArgs::rethrow(const Error& error) const {
  // An error of another rank does not get the text of this call.
  if (error.code() == ErrorCode::peer_failed) throw;
  fail(error.code(), "{}\n  in the call {}", error.what(), text());
}

void CallArgs::add_key_bytes(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from + i, std::min(sizeof word, bytes - i));
    key.push_back(word);
  }
}

}  // namespace shard::call
