#include "shard/call/plan_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shard/call/exchange.h"
#include "shard/call/float32_call.h"
#include "shard/core/grad_mask.h"
#include "shard/dist/dist_tensor.h"

namespace shard::call {
namespace {

std::vector<double> numbers_of(const std::vector<Scalar>& scalars) {
  std::vector<double> numbers;
  for (const Scalar& scalar : scalars) numbers.push_back(scalar.to<double>());
  return numbers;
}

/// The value of an attribute in the form that placement rules take.
spmd::AttrValue rule_value(const AttrRef& attr) {
  return std::visit(
      [](const auto* value) -> spmd::AttrValue {
        using T = std::remove_cvref_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, int>) return static_cast<int64_t>(*value);
        else if constexpr (std::is_same_v<T, float>) return static_cast<double>(*value);
        else if constexpr (std::is_same_v<T, std::vector<float>>)
          return std::vector<double>(value->begin(), value->end());
        else if constexpr (std::is_same_v<T, Device>) return to_string(*value);
        else if constexpr (std::is_same_v<T, std::optional<DType>>)
          return *value ? spmd::AttrValue(**value) : spmd::AttrValue(std::string());
        else if constexpr (std::is_same_v<T, std::optional<Device>>) return *value ? to_string(**value) : std::string();
        else if constexpr (std::is_same_v<T, std::vector<bool>>)
          return std::vector<double>(value->begin(), value->end());
        else if constexpr (std::is_same_v<T, std::vector<std::string>>)
          return fmt::format("{}", fmt::join(*value, ","));
        else if constexpr (std::is_same_v<T, std::vector<Scalar>>) return numbers_of(*value);
        else return *value;
      },
      attr);
}

spmd::RuleResult given_layout(const CallTypes& call) {
  const DistSpec& layout = *call.layout;
  spmd::RuleResult result;
  for (const Meta& meta : call.outputs) {
    if (meta.dims.rank() != layout.rank()) {
      fail(ErrorCode::layout,
           "[{}] layout {} on {} has {} dims, but the result {} has {}; use a layout with an entry for each dim",
           call.op.name, layout.text(), call.mesh->describe(), layout.rank(), to_string(meta), meta.dims.rank());
    }
    if (loses_values(meta.dtype, *DistSpec::replicated(call.mesh, meta.dims.rank()), layout)) {
      fail(ErrorCode::layout,
           "[{}] the result {} would lose values in layout {} on {}: a pending any or all is 0 or 1 once it is "
           "reduced, and a pending average of integers may wrap around; make it of dtype bool or a float dtype, or "
           "drop that reduction",
           call.op.name, to_string(meta), layout.text(), call.mesh->describe());
    }
    result.outputs.push_back(layout.layout());
  }
  return result;
}

/// True for an output that nobody wants and the kernel does not compute then.
bool leaves_out(const CallTypes& call, size_t slot) {
  return call.op.outputs[slot].masked && !GradMask(*std::get<const int64_t*>(call.attrs.back()))[slot];
}

spmd::RuleResult infer_rule(const CallTypes& call, FallbackPolicy fallback, CallPlan& plan) {
  std::vector<spmd::AttrValue> attrs;
  for (const AttrRef& attr : call.attrs) attrs.push_back(rule_value(attr));
  spmd::RuleArgs rule{call.op, call.mesh, call.inputs, call.slots, attrs, call.outputs, call.output_slots};
  if (call.inplace) {
    rule.pinned.resize(call.inputs.size());
    for (const AliasDef& alias : call.op.aliases) {
      const SlotRange& slot = call.slots[static_cast<size_t>(alias.input)];
      for (size_t i = 0; alias.kind == AliasDef::Kind::inplace && i < slot.count; ++i)
        rule.pinned[slot.first + i] = true;
    }
  }
  plan.fallback = !spmd::has_rule(call.op) && fallback == FallbackPolicy::replicate;
  spmd::RuleResult result = plan.fallback ? spmd::infer_replicated(rule) : spmd::infer(rule);
  // The rule does not see the mask: layouts of the other outputs are those of the call that computes all.
  for (size_t slot = 0; slot < call.output_slots.size(); ++slot) {
    const bool absent = spmd::is_absent_output(rule, slot) || leaves_out(call, slot);
    result.absent.insert(result.absent.end(), call.output_slots[slot].count, absent);
  }
  return result;
}

/// Plans the outputs whose number of rows comes from data. The ranks of the world exchange their
/// row counts unless each rank computes all rows.
void plan_dynamic(const CallTypes& call, int world_size, CallPlan& plan) {
  size_t count = 0;
  for (size_t slot = 0; slot < plan.output_slots.size(); ++slot) {
    if ((call.op.dynamic_outputs >> slot & 1u) == 0) continue;
    OutputPlan& output = plan.outputs[plan.output_slots[slot].first];
    output.dynamic = true;
    ++count;
    plan.exchanges_rows = plan.exchanges_rows || !output.spec->axes(0).empty() || call.mesh->size() != world_size;
  }
  if (plan.exchanges_rows) plan.row_count_bytes = gather_bytes(world_size, count * sizeof(uint64_t));
}

CommCause cause_of(const CallTypes& call, const InputPlan& input) {
  return {call.op.name, call.op.inputs[static_cast<size_t>(input.slot)].name};
}

void plan_alias(const CallTypes& call, const Policies& policies, const AliasDef& alias, std::optional<size_t> i,
                OutputPlan& output, CallPlan& plan) {
  const bool in_place = alias.kind == AliasDef::Kind::inplace;
  // In the in-place variant, a pair that is both a view and in-place counts as in-place.
  if (!in_place && output.alias >= 0) return;
  output.kind = alias.kind;
  output.write_back = nullptr;
  output.alias = i ? static_cast<int>(*i) : -1;
  if (!i || plan.inputs[*i].spec == nullptr) {
    output.spec = nullptr;  // the output of an absent optional argument is absent too
    return;
  }
  const InputPlan& x = plan.inputs[*i];
  if (in_place && call.op.elementwise && !(output.global.dims == x.global.dims)) {
    fail(ErrorCode::shape_mismatch,
         "[{}] the result has shape {}, but its target is {}: an in-place op cannot grow its target by broadcasting; "
         "use {} instead",
         call.name, to_string(output.global.dims),
         argument_text(call.op.inputs[static_cast<size_t>(x.slot)].name, x.global, *x.spec), call.op.name);
  }
  const bool adopts = policies.inplace == InplacePolicy::adopt;
  const bool same = output.global == x.global;
  if (in_place && same && same_value(x.global.dtype, output.spec, x.spec)) output.spec = x.spec;
  const bool rewritten = in_place && same && !reinterprets(call.op, static_cast<size_t>(alias.output));
  if (rewritten && adopts && output.spec != x.spec && policies.view == ViewPolicy::sync)
    output.adopted = plan_reshard(x.global, x.spec, output.spec, 0, cause_of(call, x), policies.sums);
  const bool back = (rewritten && !adopts && (x.move || output.spec != x.spec)) ||
                    (alias.kind == AliasDef::Kind::written_view && x.move && policies.view != ViewPolicy::temporary);
  if (!back) return;
  if (loses_values(output.global.dtype, *output.spec, *x.spec)) fail_loses(call.op, call.name, x);
  output.write_back = plan_reshard(output.global, output.spec, x.spec, 0, cause_of(call, x), policies.sums);
}

void plan_aliases(const CallTypes& call, const Policies& policies, CallPlan& plan) {
  for (const AliasDef& alias : call.op.aliases) {
    const SlotRange& from = call.slots[static_cast<size_t>(alias.input)];
    const SlotRange& to = plan.output_slots[static_cast<size_t>(alias.output)];
    if (alias.kind == AliasDef::Kind::inplace && !call.inplace) continue;
    if (from.count != to.count && from.count != 0) {
      fail(ErrorCode::internal,
           "[{}] has {} results for {} tensors of '{}' that share their buffers; its infer_meta function is wrong",
           call.name, to.count, from.count, call.op.inputs[static_cast<size_t>(alias.input)].name);
    }
    for (size_t k = 0; k < to.count; ++k) {
      plan_alias(call, policies, alias, from.count == 0 ? std::nullopt : std::optional(from.first + k),
                 plan.outputs[to.first + k], plan);
    }
  }
  for (size_t slot = 0; slot < plan.output_slots.size(); ++slot) {
    for (size_t o = plan.output_slots[slot].first; o < plan.output_slots[slot].first + plan.output_slots[slot].count;
         ++o) {
      OutputPlan& output = plan.outputs[o];
      output.written = output.alias >= 0 && output.spec != nullptr && output.kind != AliasDef::Kind::view &&
                       (output.kind == AliasDef::Kind::written_view || !reinterprets(call.op, slot));
    }
  }
}

/// The reduce type whose identity the rank at `at` contributes to a value that is created in a
/// pending layout; nullopt for a rank that contributes the value itself. One rank has the value,
/// and all others contribute what leaves it unchanged. Reductions run from the last axis to the
/// first, so the last axis decides.
std::optional<ReduceType> identity_at(const DistSpec& layout, const Coordinate& at) {
  std::optional<ReduceType> identity;
  for (int axis = 0; axis < layout.mesh()->rank(); ++axis) {
    const std::optional<ReduceType> type = layout.partial(axis);
    if (type && !is_mean(*type) && at[static_cast<size_t>(axis)] != 0) identity = type;
  }
  return identity;
}

}  // namespace

bool reinterprets(const OpDef& op, size_t output_slot) {
  return std::any_of(op.aliases.begin(), op.aliases.end(), [&](const AliasDef& alias) {
    return alias.kind == AliasDef::Kind::view && alias.output == static_cast<int>(output_slot);
  });
}

void fail_loses(const OpDef& op, const char* name, const InputPlan& input) {
  fail(ErrorCode::layout,
       "[{}] the result cannot be written back into {}: a pending any or all is 0 or 1 once it is reduced, and a "
       "pending average of integers may wrap around, so that values would be lost; reshard it to a layout without them "
       "first{}",
       name, argument_text(op.inputs[static_cast<size_t>(input.slot)].name, input.global, *input.spec),
       op.inplace_name == op.name ? "" : fmt::format(", or use {}", op.name));
}

void fail_shard(const OpDef& op, const OutputPlan& output, const Meta& computed, const Meta& planned) {
  fail(ErrorCode::internal, "[{}] computes a local shard {} where layout {} of {} has {}; its placement rule is wrong",
       op.name, to_string(computed), output.spec->text(), to_string(output.global), to_string(planned));
}

CallPlan place_call(const CallTypes& call, FallbackPolicy fallback) {
  CallPlan plan;
  plan.mesh = call.mesh;
  plan.layout = call.layout;
  plan.output_slots.assign(call.output_slots.begin(), call.output_slots.end());
  const spmd::RuleResult rule = call.layout != nullptr ? given_layout(call) : infer_rule(call, fallback, plan);
  plan.reduce_axes = rule.reduce_axes;
  plan.fetches = rule.fetches;
  plan.relayout = rule.relayout;
  plan.inputs.resize(call.inputs.size());
  for (size_t slot = 0; slot < call.slots.size(); ++slot) {
    for (size_t i = call.slots[slot].first; i < call.slots[slot].first + call.slots[slot].count; ++i) {
      InputPlan& input = plan.inputs[i];
      input.slot = static_cast<int>(slot);
      if (call.inputs[i].spec == nullptr) continue;
      input.global = call.inputs[i].meta;
      input.spec = call.inputs[i].spec;
      input.want = DistSpec::make(rule.inputs[i]);
      input.shape_only = (call.op.no_need_buffer >> slot & 1u) != 0;
    }
  }
  for (size_t o = 0; o < call.outputs.size(); ++o) {
    OutputPlan& output = plan.outputs.emplace_back();
    output.global = call.outputs[o];
    if (o >= rule.absent.size() || !rule.absent[o]) output.spec = DistSpec::make(rule.outputs[o]);
  }
  return plan;
}

CallPlan plan_call(const CallTypes& call, const Policies& policies, const World& world) {
  for (const Meta& meta : call.outputs)
    checked_bytes(meta, call.name);  // throws on every rank alike, before any shard is made
  if (call.layout != nullptr) check_mesh_in_world(call.mesh, world);
  CallPlan plan = place_call(call, policies.fallback);
  for (InputPlan& input : plan.inputs) {
    if (input.spec == nullptr || input.shape_only || same_value(input.global.dtype, input.spec, input.want)) continue;
    input.move = plan_reshard(input.global, input.spec, input.want, 0, cause_of(call, input), policies.sums);
  }
  plan_dynamic(call, world.size(), plan);
  if (plan.relayout)
    plan.inputs[0].move = plan_relayout(plan.inputs[0].global, plan.inputs[0].spec, call.outputs[0].dims,
                                        plan.outputs[0].spec, policies.sums);
  plan_aliases(call, policies, plan);
  plan.bytes = plan.row_count_bytes;
  for (const InputPlan& input : plan.inputs) plan.bytes += input.move ? input.move->bytes : 0;
  for (const OutputPlan& output : plan.outputs) plan.bytes += output.write_back ? output.write_back->bytes : 0;
  plan.checked = plan.fallback || plan.exchanges_rows;
  for (const InputPlan& input : plan.inputs) plan.checked = plan.checked || input.move;
  for (const OutputPlan& output : plan.outputs) plan.checked = plan.checked || output.alias >= 0;
  return plan;
}

void bind_plan(CallPlan& plan, const std::optional<Coordinate>& at) {
  plan.active = at.has_value();
  plan.in_float32 = false;
  plan.identity.reset();
  plan.input_boxes.clear();
  plan.input_shards.clear();
  plan.output_boxes.clear();
  plan.output_shards.clear();
  plan.kernel_metas.clear();
  if (!at) return;
  if (plan.layout != nullptr) plan.identity = identity_at(*plan.layout, *at);
  const auto add = [&](const Meta& global, const DistSpec* spec, std::vector<Box>& boxes, std::vector<Meta>& shards) {
    boxes.push_back(spec == nullptr ? Box() : Box{global.dims, shard_box(spec->layout(), global.dims, *at).begin});
    shards.push_back(spec == nullptr ? Meta() : shard_meta(global, *spec, *at));
  };
  for (const InputPlan& input : plan.inputs) {
    add(input.global, input.want, plan.input_boxes, plan.input_shards);
    if (input.shape_only) plan.input_shards.back().dtype = input.global.dtype;
  }
  for (const OutputPlan& output : plan.outputs) add(output.global, output.spec, plan.output_boxes, plan.output_shards);
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    plan.in_float32 = plan.in_float32 || plan.input_shards[i].dtype != plan.inputs[i].global.dtype;
  for (size_t o = 0; o < plan.outputs.size(); ++o)
    plan.in_float32 = plan.in_float32 ||
                      (plan.outputs[o].spec != nullptr && plan.output_shards[o].dtype != plan.outputs[o].global.dtype);
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    Meta meta = plan.outputs[o].global;
    if (plan.outputs[o].spec != nullptr) meta.dims = plan.output_shards[o].dims;
    if (plan.in_float32 && plan.layout == nullptr) meta.dtype = compute_dtype(meta.dtype);
    plan.kernel_metas.push_back(meta);
  }
}

}  // namespace shard::call
