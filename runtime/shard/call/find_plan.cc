#include "shard/call/find_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "shard/call/exchange.h"
#include "shard/call/plan_checks.h"
#include "shard/dist/view_use.h"
#include "shard/kernels/registry.h"

namespace shard::call {
namespace {

/// Throws no_kernel or mixed_device if the dense function would, before anything is sent. An op with
/// tensors and a device attribute is not checked here.
void check_kernel(const CallArgs& args) {
  std::optional<Device> place;
  for (const AttrRef& attr : args.attrs) {
    const auto* const given = std::get_if<const Device*>(&attr);
    if (given == nullptr && !std::holds_alternative<const std::optional<Device>*>(attr)) continue;
    // Only the dense function knows which of several devices it takes.
    if (!args.tensors.empty() || given == nullptr || place) return;
    place = **given;
  }
  const DenseTensor* first = nullptr;
  for (const DistTensorImpl* impl : args.tensors) {
    if (impl != nullptr) gather_device(args.ctx, impl->value, first);
  }
  const Device device = place ? *place : first == nullptr ? kCpu : first->device();
  for (const DTypeSource& source : args.op.kernel_dtypes) {
    const auto index = static_cast<size_t>(source.index);
    std::optional<DType> dtype;
    switch (source.kind) {
      case DTypeSource::Kind::constant: dtype = source.constant; break;
      case DTypeSource::Kind::input: {
        const SlotRange& slot = args.slots[index];
        if (slot.count != 0 && args.tensors[slot.first] != nullptr) dtype = args.tensors[slot.first]->global.dtype;
        break;
      }
      case DTypeSource::Kind::attr: {
        if (const auto* given = std::get_if<const DType*>(&args.attrs[index])) dtype = **given;
        else dtype = *std::get<const std::optional<DType>*>(args.attrs[index]);
        break;
      }
    }
    if (dtype && source.to_complex) dtype = complex_dtype(args.ctx, *dtype);
    if (dtype) return kernel_table(args.op.kernel.data()).check(args.ctx, device, *dtype);
  }
}

/// Two targets of one call must not share a buffer or, under ViewPolicy::sync, have the same
/// source: the second write would undo the first. The check compares storages, because all ranks
/// share those alike, even where local shards are empty.
void check_distinct_targets(const CallArgs& args, const CallPlan& plan) {
  struct Target {
    const Storage* buffer;
    const DistTensorImpl* tensor;
  };
  SmallVec<Target, 16> written;
  for (const OutputPlan& output : plan.outputs) {
    if (!output.written) continue;
    const DistTensorImpl* const x = args.tensors[static_cast<size_t>(output.alias)];
    Storage& target = *x->value.storage();
    written.push_back({args.rank.policies.view == ViewPolicy::sync ? &target.root() : &target, x});
  }
  std::sort(written.begin(), written.end(),
            [](const auto& a, const auto& b) { return std::less<>()(a.buffer, b.buffer); });
  const auto same = std::adjacent_find(written.begin(), written.end(),
                                       [](const auto& a, const auto& b) { return a.buffer == b.buffer; });
  if (same != written.end()) fail_written_twice(args.ctx, to_string(same->tensor->global));
}

/// Throws if a target may not be written, or if InplacePolicy does not allow to reshard it.
void check_writes(const CallArgs& args, const CallPlan& plan) {
  int written = 0;
  for (const OutputPlan& output : plan.outputs) {
    if (!output.written) continue;
    ++written;
    const auto i = static_cast<size_t>(output.alias);
    const Storage& target = *args.tensors[i]->value.storage();
    target.wait_before_write();
    try {
      if (args.rank.policies.view == ViewPolicy::strict) target.check_write(args.ctx.op);
    } catch (const Error& error) {
      fail(error.code(), "{}{}", error.what(), view_advice(target, error.code(), ViewPolicy::strict));
    }
    const auto text = [&] { return argument_text(args.name_of(plan.inputs[i].slot), *args.tensors[i]); };
    const bool reshards = plan.inputs[i].move != nullptr || output.write_back != nullptr;
    if (output.kind == AliasDef::Kind::inplace && args.rank.policies.inplace == InplacePolicy::error && reshards) {
      fail(ErrorCode::policy,
           "[{}] cannot compute in the layout of {}, and InplacePolicy::error forbids resharding it; reshard it to {} "
           "first, or use InplacePolicy::keep",
           args.ctx.op, text(), plan.inputs[i].want->text());
    }
    const bool adopts = output.kind == AliasDef::Kind::inplace && args.rank.policies.inplace == InplacePolicy::adopt &&
                        output.spec != args.tensors[i]->spec;
    if (adopts && args.tensors[i]->grad.requires_grad && !args.tensors[i]->grad.node) {
      fail(ErrorCode::policy,
           "[{}] InplacePolicy::adopt would put {} into layout {} in a new buffer, but it is a leaf that requires a "
           "gradient, and its gradient has its layout; reshard it before it becomes a leaf, or use InplacePolicy::keep",
           args.ctx.op, argument_text(args.name_of(plan.inputs[i].slot), *args.tensors[i]), output.spec->text());
    }
    if (adopts && args.rank.policies.view == ViewPolicy::strict && is_view(*args.tensors[i])) {
      fail(ErrorCode::policy,
           "[{}] InplacePolicy::adopt would put {} into layout {} in a new buffer, but it is a view, and its source "
           "would not be written. Use InplacePolicy::keep, ViewPolicy::sync, or write a copy (assign(x))",
           args.ctx.op, argument_text(args.name_of(plan.inputs[i].slot), *args.tensors[i]), output.spec->text());
    }
  }
  if (written > 1) check_distinct_targets(args, plan);
}

/// Under ViewPolicy::sync, what is written must reach the sources of a view; otherwise the call is
/// refused.
void check_write_back(const CallArgs& args, const CallPlan& plan, const OutputPlan& output, PlannedTraffic& traffic,
                      bool all) {
  const auto i = static_cast<size_t>(output.alias);
  const DistTensorImpl& x = *args.tensors[i];
  if (!(output.global == x.global)) return;  // the target gets a new buffer and is separated from its source
  if (!output.adopted || !is_view(x)) return plan_write_back(*x.value.storage(), args.ctx.op, traffic, all);
  if (loses_values(x.global.dtype, *output.spec, *x.spec)) fail_loses(args.op, args.ctx.op, plan.inputs[i]);
  // The new buffer becomes a copy of the source.
  const LinkEnd source = ViewLink::source_of({x.value, x.global, x.spec});
  for (const auto& plan : plan_between(output.global, output.spec, source.global, source.spec, args.rank.policies.sums))
    add_reshard(traffic, *plan, "the result, into the source of the view,", all);
  plan_write_back(*source.shard.storage(), args.ctx.op, traffic, all);
}

/// The communication in addition to the plan, which depends on the current state of the arguments.
PlannedTraffic moment_traffic(const CallArgs& args, const CallPlan& plan) {
  PlannedTraffic traffic;
  const bool all = args.rank.policies.comm == CommPolicy::forbid_reshards;
  if (args.extras() != nullptr) args.extras()->stale.plan(traffic, all);
  if (args.checks_promoted()) {
    const int64_t bytes =
        gather_bytes(args.rank.world().size(), sizeof(uint64_t)) * static_cast<int64_t>(args.extras()->promoted.size());
    traffic.bytes += bytes;
    traffic.text +=
        fmt::format(" hashes of promoted arguments, for PromotionPolicy::replicate_checked ({} bytes);", bytes);
  }
  if (args.rank.policies.view != ViewPolicy::sync) return traffic;
  for (const OutputPlan& output : plan.outputs) {
    if (output.written) check_write_back(args, plan, output, traffic, all);
  }
  return traffic;
}

/// All communication of the call, for CommPolicy.
PlannedTraffic planned_traffic(const CallArgs& args, const CallPlan& plan, const PlannedTraffic& moment) {
  PlannedTraffic traffic{{}, plan.bytes + moment.bytes, plan.exchanges_rows || plan.kernel_bytes_unknown};
  // Lists only reshards that send bytes, unless the policy asks for all reshards.
  const bool all = args.rank.policies.comm == CommPolicy::forbid_reshards;
  const auto wanted = [&](const std::shared_ptr<const ReshardPlan>& move) {
    return move && (move->bytes != 0 || (all && !move->steps.empty()));
  };
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const InputPlan& input = plan.inputs[i];
    if (!wanted(input.move)) continue;
    traffic.text +=
        fmt::format(" argument '{}' ({}) from {} to {} ({} bytes);", args.name_of(input.slot),
                    to_string(input.move->meta), input.spec->text(), input.move->to->text(), input.move->bytes);
  }
  for (const OutputPlan& output : plan.outputs) {
    if (wanted(output.write_back)) {
      traffic.text +=
          fmt::format(" the write-back of the result ({}) from {} to {} ({} bytes);", to_string(output.global),
                      output.spec->text(), output.write_back->to->text(), output.write_back->bytes);
    }
  }
  if (plan.exchanges_rows) {
    traffic.text += fmt::format(
        " the row counts of the result ({} bytes), and the rows that change owner, whose number depends on the data;",
        plan.row_count_bytes);
  }
  if (plan.kernel_bytes != 0 || plan.kernel_bytes_unknown) traffic.text += " " + kernel_text(plan) + ";";
  traffic.text += moment.text;
  return traffic;
}

/// Replaces the dims of a shard that reduce_axes shard by those of the global tensor.
void widen(const CallPlan& plan, const Meta& global, const DistSpec* spec, Meta& shard) {
  for (int i = 0; i < plan.reduce_axes.size() && spec != nullptr; ++i) {
    const int dim = spec->layout().dim_of(plan.reduce_axes[i]);
    if (dim >= 0) shard.dims[dim] = global.dims[dim];
  }
}

/// Makes the plan and adds it to the cache.
const CallPlan& make_plan(const CallArgs& args, uint64_t hash, const InferEntry& infer, DryRun dry_run) {
  std::vector<spmd::TensorArg> inputs;
  std::vector<const Meta*> metas;
  for (const DistTensorImpl* impl : args.tensors) {
    inputs.push_back(impl == nullptr ? spmd::TensorArg{} : spmd::TensorArg{impl->global, impl->spec});
    metas.push_back(impl == nullptr ? nullptr : &impl->global);
  }
  const OutputMetas outputs = infer({args.ctx, metas, args.slots, args.attrs});
  check_kernel(args);
  if (args.ctx.launcher != nullptr && args.op.dynamic_outputs != 0)
    fail_unbounded(args.ctx, outputs.flat[static_cast<size_t>(std::countr_zero(args.op.dynamic_outputs))]);
  const CallTypes types{args.op,    args.ctx.op, args.inplace, args.mesh,    inputs,
                        args.slots, args.attrs,  args.layout,  outputs.flat, outputs.slots};
  CallPlan plan = plan_call(types, args.rank.policies, args.rank.world());
  if (!plan.reduce_axes.empty() && !plan.relayout) count_kernel(args, plan, dry_run);
  bind_plan(plan, args.mesh->coordinate(args.rank.id()));
  plan.checks_rule = dry_run && plan.active && !plan.relayout && args.layout == nullptr;
  return args.cache.insert(args.key, hash, std::move(plan));
}

/// The checks that depend on the current state, and are therefore made even if the plan is cached:
/// whether the targets may be written, and whether policies allow the communication. Needed only
/// for a plan that writes targets or sends. Sets Extras::moment.
void check_call(CallArgs& args, const CallPlan& plan) {
  check_writes(args, plan);
  PlannedTraffic moment;
  if (args.extras() != nullptr || args.rank.policies.view == ViewPolicy::sync) moment = moment_traffic(args, plan);
  if (plan.fallback) args.cache.count_fallback(plan.bytes);
  if (args.rank.policies.comm != CommPolicy::allow)
    check_comm_policy(args.rank, args.ctx.op, *args.mesh, planned_traffic(args, plan, moment));
  if (moment.bytes != 0) args.make_extras().moment = std::move(moment);
}

}  // namespace

const CallPlan& find_plan(CallArgs& args, const InferEntry& infer, DryRun dry_run) {
  args.check_readable();
  const uint64_t hash = hash_words(args.key);
  const CallPlan* plan = args.cache.find(args.key, hash);
  try {
    if (plan == nullptr) plan = &make_plan(args, hash, infer, dry_run);
    if (plan->checked || args.extras() != nullptr) check_call(args, *plan);
  } catch (const Error& error) { args.rethrow(error); }
  return *plan;
}

void check_rule(const OpContext& ctx, const CallArgs& args, const CallPlan& plan, const InferEntry& infer) {
  std::vector<Meta> shards = plan.input_shards, planned = plan.output_shards;
  if (plan.fetches) {
    // Along the axes over which the kernel fetches, the op infers from whole dims, as its kernel does.
    for (size_t i = 0; i < shards.size(); ++i) widen(plan, plan.inputs[i].global, plan.inputs[i].want, shards[i]);
    for (size_t o = 0; o < planned.size(); ++o) widen(plan, plan.outputs[o].global, plan.outputs[o].spec, planned[o]);
  }
  std::vector<const Meta*> metas;
  for (size_t i = 0; i < args.tensors.size(); ++i) {
    // Only shapes are compared. The dtypes may differ, since some shards may be float32 and others
    // 16-bit.
    shards[i].dtype = plan.inputs[i].global.dtype;
    metas.push_back(args.tensors[i] == nullptr ? nullptr : &shards[i]);
  }
  std::vector<AttrRef> attrs(args.attrs.begin(), args.attrs.end());
  IntArray shape;
  if (args.op.local_shape >= 0) {
    const SlotRange& slot = plan.output_slots[static_cast<size_t>(args.op.local_shape_output)];
    shape = IntArray(plan.output_shards[slot.first].dims);
    attrs[static_cast<size_t>(args.op.local_shape)] = &shape;
  }
  const OutputMetas outputs = infer({ctx, metas, args.slots, attrs});
  if (outputs.slots != plan.output_slots) {
    fail(ErrorCode::internal,
         "[{}] has {} outputs on local shards and {} on the whole tensors; its placement rule is wrong", args.op.name,
         outputs.flat.size(), plan.outputs.size());
  }
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const OutputPlan& output = plan.outputs[o];
    const Meta computed = {outputs.flat[o].dims, planned[o].dtype};
    if (output.spec != nullptr && !output.dynamic && !(computed == planned[o]))
      fail_shard(args.op, output, computed, planned[o]);
  }
  plan.checks_rule = false;
}

}  // namespace shard::call
