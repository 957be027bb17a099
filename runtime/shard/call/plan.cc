#include "shard/call/plan.h"

#include <fmt/format.h>

#include "shard/core/log.h"

namespace shard::call {
namespace {

void join(std::string& text, const std::string& entry) {
  if (!text.empty()) text += "; ";
  text += entry;
}

std::string_view slot_name(const OpDef& op, const InputPlan& input) {
  return op.inputs[static_cast<size_t>(input.slot)].name;
}

size_t slot_of(const CallPlan& plan, size_t output) {
  size_t slot = 0;
  while (output >= plan.output_slots[slot].first + plan.output_slots[slot].count) ++slot;
  return slot;
}

std::string alias_text(const OpDef& op, const CallPlan& plan, const OutputPlan& output, ViewPolicy policy) {
  const InputPlan& input = plan.inputs[static_cast<size_t>(output.alias)];
  std::string text;
  switch (output.kind) {
    case AliasDef::Kind::view: text = "view of "; break;
    case AliasDef::Kind::written_view: text = "written view of "; break;
    case AliasDef::Kind::inplace: text = "in-place on "; break;
  }
  const bool of_copy = input.move != nullptr && output.kind != AliasDef::Kind::inplace;
  text += fmt::format("{}{}", of_copy ? "a copy of " : "", slot_name(op, input));
  if (output.write_back) text += ", written back";
  if (of_copy && policy == ViewPolicy::temporary) text += ", independent";
  return text;
}

}  // namespace

std::string kernel_text(const CallPlan& plan) {
  std::string axes;
  for (int i = 0; i < plan.reduce_axes.size(); ++i) axes += (i == 0 ? "" : ", ") + plan.mesh->name(plan.reduce_axes[i]);
  if (plan.fetches && !plan.kernel_bytes_unknown)
    return fmt::format("the kernel fetches elements over {}: exchange {} B", axes, plan.kernel_bytes);
  if (plan.kernel_bytes_unknown)
    return fmt::format("the kernel combines values over {}, how many is unknown (register_dry_kernel)", axes);
  return fmt::format("the kernel combines values over {}: {} B", axes, plan.kernel_bytes);
}

std::string describe_shard(std::string_view name, const Dims* shard, const Meta& global, const DistSpec& spec) {
  const std::string local =
      shard == nullptr ? "no local shard" : to_string(Meta{*shard, shard_dtype(global.dtype, spec.layout())});
  return fmt::format("{}{}{} of {} {}", name, name.empty() ? "" : " ", local, to_string(global), spec.text());
}

std::string describe_shards(const OpDef& op, const CallPlan& plan) {
  std::string text;
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const OutputPlan& output = plan.outputs[o];
    if (output.spec == nullptr) continue;
    join(text, describe_shard(op.outputs[slot_of(plan, o)].name, plan.active ? &plan.output_shards[o].dims : nullptr,
                              output.global, *output.spec));
  }
  return text;
}

CallRecord describe(const OpDef& op, std::string_view name, const CallPlan& plan, ViewPolicy policy) {
  CallRecord record;
  record.op = name;
  record.bytes = plan.bytes;
  for (const InputPlan& input : plan.inputs) {
    if (input.spec == nullptr) continue;
    join(record.inputs, fmt::format("{} {}", slot_name(op, input), input.spec->text()));
    if (input.move) join(record.reshards, fmt::format("{}: {}", slot_name(op, input), input.move->describe()));
  }
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const OutputPlan& output = plan.outputs[o];
    if (output.spec == nullptr) continue;
    const std::string_view output_name = op.outputs[slot_of(plan, o)].name;
    join(record.outputs, fmt::format("{} {}", output_name, output.spec->text()));
    if (output.write_back && !output.write_back->steps.empty())
      join(record.reshards, fmt::format("{} write-back: {}", output_name, output.write_back->describe()));
    if (output.dynamic && plan.exchanges_rows)
      join(record.reshards, fmt::format("{}: rows counted over the world and balanced", output_name));
    if (output.alias >= 0)
      join(record.aliases, fmt::format("{}: {}", output_name, alias_text(op, plan, output, policy)));
  }
  if (plan.kernel_bytes != 0 || plan.kernel_bytes_unknown) join(record.reshards, kernel_text(plan));
  return record;
}

void check_comm_policy(const Rank& rank, std::string_view op, const ProcessMesh& mesh, const PlannedTraffic& moves) {
  const CommPolicy policy = rank.policies.comm;
  const bool sends = moves.bytes != 0 || moves.more;
  const bool applies =
      policy == CommPolicy::forbid_reshards ? !moves.text.empty() : policy != CommPolicy::allow && sends;
  if (!applies) return;
  const std::string text =
      fmt::format("[{}] would {} on {}:{} reshard the arguments first, or allow it with CommPolicy::allow", op,
                  sends ? "communicate" : "change layouts", mesh.describe(), moves.text);
  if (policy != CommPolicy::warn) fail(ErrorCode::policy, "{}", text);
  log_message(text);
}

}  // namespace shard::call
