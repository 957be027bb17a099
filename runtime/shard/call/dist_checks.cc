// The checks that every distributed call makes, even if its plan is cached, because they depend on
// the current state: whether the targets may be written, and whether policies allow the
// communication.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "shard/call/dense_call.h"
#include "shard/call/dist_call.h"
#include "shard/call/exchange.h"
#include "shard/dist/view_use.h"

namespace shard::call {

void DistCall::check_policies() {
  check_writes();
  const PlannedTraffic moment =
      extras_ || rank_.policies.view == ViewPolicy::sync ? moment_traffic() : PlannedTraffic();
  if (moment.bytes != 0) {
    extras().moment_bytes = moment.bytes;
    extras_->moment_text = moment.text;
  }
  if (plan_->fallback) cache_.count_fallback(plan_->bytes);
  if (rank_.policies.comm != CommPolicy::allow) check_comm_policy(rank_, ctx_.op, *mesh_, planned_traffic(moment));
}

/// The communication in addition to the plan, which depends on the current state of the arguments.
PlannedTraffic DistCall::moment_traffic() {
  PlannedTraffic traffic;
  const bool all = rank_.policies.comm == CommPolicy::forbid_reshards;
  if (extras_) extras_->stale.plan(traffic, all);
  if (checks_promoted()) {
    const int64_t bytes =
        gather_bytes(rank_.world().size(), sizeof(uint64_t)) * static_cast<int64_t>(extras_->promoted.size());
    traffic.bytes += bytes;
    traffic.text +=
        fmt::format(" hashes of promoted arguments, for PromotionPolicy::replicate_checked ({} bytes);", bytes);
  }
  if (rank_.policies.view != ViewPolicy::sync) return traffic;
  for (const OutputPlan& output : plan_->outputs) {
    if (writes(output)) check_write_back(output, traffic, all);
  }
  return traffic;
}

PlannedTraffic DistCall::planned_traffic(const PlannedTraffic& moment) const {
  PlannedTraffic traffic{{}, plan_->bytes + moment.bytes, plan_->exchanges_rows || plan_->kernel_bytes_unknown};
  // Lists only reshards that send bytes, unless the policy asks for all reshards.
  const bool all = rank_.policies.comm == CommPolicy::forbid_reshards;
  const auto wanted = [&](const std::shared_ptr<const ReshardPlan>& move) {
    return move && (move->bytes != 0 || (all && !move->steps.empty()));
  };
  for (size_t i = 0; i < plan_->inputs.size(); ++i) {
    const InputPlan& input = plan_->inputs[i];
    if (!wanted(input.move)) continue;
    traffic.text +=
        fmt::format(" argument '{}' ({}) from {} to {} ({} bytes);", op_.inputs[static_cast<size_t>(input.slot)].name,
                    to_string(input.move->meta), input.spec->text(), input.move->to->text(), input.move->bytes);
  }
  for (const OutputPlan& output : plan_->outputs) {
    if (wanted(output.write_back)) {
      traffic.text +=
          fmt::format(" the write-back of the result ({}) from {} to {} ({} bytes);", to_string(output.global),
                      output.spec->text(), output.write_back->to->text(), output.write_back->bytes);
    }
  }
  if (plan_->exchanges_rows) {
    traffic.text += fmt::format(
        " the row counts of the result ({} bytes), and the rows that change owner, whose number depends on the data;",
        plan_->row_count_bytes);
  }
  if (plan_->kernel_bytes != 0 || plan_->kernel_bytes_unknown) traffic.text += " " + kernel_text(*plan_) + ";";
  traffic.text += moment.text;
  return traffic;
}

void DistCall::check_writes() const {
  int written = 0;
  for (const OutputPlan& output : plan_->outputs) {
    if (!writes(output)) continue;
    ++written;
    const auto i = static_cast<size_t>(output.alias);
    const Storage& target = *tensors_[i]->value.storage();
    target.wait_before_write();
    try {
      if (rank_.policies.view == ViewPolicy::strict) target.check_write(ctx_.op);
    } catch (const Error& error) {
      fail(error.code(), "{}{}", error.what(), view_advice(target, error.code(), ViewPolicy::strict));
    }
    const bool reshards = plan_->inputs[i].move != nullptr || output.write_back != nullptr;
    if (output.kind == AliasDef::Kind::inplace && rank_.policies.inplace == InplacePolicy::error && reshards) {
      fail(ErrorCode::policy,
           "[{}] cannot compute in the layout of {}, and InplacePolicy::error forbids resharding it; reshard it to {} "
           "first, or use InplacePolicy::keep",
           ctx_.op, argument_text(op_.inputs[static_cast<size_t>(plan_->inputs[i].slot)].name, *tensors_[i]),
           plan_->inputs[i].want->text());
    }
    const bool adopts = output.kind == AliasDef::Kind::inplace && rank_.policies.inplace == InplacePolicy::adopt &&
                        output.spec != tensors_[i]->spec;
    if (adopts && tensors_[i]->grad.requires_grad && !tensors_[i]->grad.node) {
      fail(ErrorCode::policy,
           "[{}] InplacePolicy::adopt would put {} into layout {} in a new buffer, but it is a leaf that requires a "
           "gradient, and its gradient has its layout; reshard it before it becomes a leaf, or use InplacePolicy::keep",
           ctx_.op, argument_text(op_.inputs[static_cast<size_t>(plan_->inputs[i].slot)].name, *tensors_[i]),
           output.spec->text());
    }
    if (adopts && rank_.policies.view == ViewPolicy::strict && is_view(*tensors_[i])) {
      fail(ErrorCode::policy,
           "[{}] InplacePolicy::adopt would put {} into layout {} in a new buffer, but it is a view, and its source "
           "would not be written. Use InplacePolicy::keep, ViewPolicy::sync, or write a copy (assign(x))",
           ctx_.op, argument_text(op_.inputs[static_cast<size_t>(plan_->inputs[i].slot)].name, *tensors_[i]),
           output.spec->text());
    }
  }
  if (written > 1) check_apart();
}

/// Under ViewPolicy::sync, what is written must reach the sources of a view; otherwise the call is
/// refused.
void DistCall::check_write_back(const OutputPlan& output, PlannedTraffic& traffic, bool all) const {
  const auto i = static_cast<size_t>(output.alias);
  const DistTensorImpl& x = *tensors_[i];
  if (!(output.global == x.global)) return;  // the target gets a new buffer and is separated from its source
  if (!output.adopted || !is_view(x)) return plan_write_back(*x.value.storage(), ctx_.op, traffic, all);
  if (loses_values(x.global.dtype, *output.spec, *x.spec)) fail_loses(op_, ctx_.op, plan_->inputs[i]);
  // The new buffer becomes a copy of the source.
  const LinkEnd source = ViewLink::source_of({x.value, x.global, x.spec});
  for (const auto& plan : plan_between(output.global, output.spec, source.global, source.spec, rank_.policies.sums))
    add_reshard(traffic, *plan, "the result, into the source of the view,", all);
  plan_write_back(*source.shard.storage(), ctx_.op, traffic, all);
}

/// Two targets of one call must not share a buffer or, under ViewPolicy::sync, have the same
/// source: the second write would undo the first. The check compares storages, because all ranks
/// share those alike, even where local shards are empty.
void DistCall::check_apart() const {
  struct Target {
    const Storage* buffer;
    const DistTensorImpl* tensor;
  };
  SmallVec<Target, 16> written;
  for (const OutputPlan& output : plan_->outputs) {
    if (!writes(output)) continue;
    const DistTensorImpl* const x = tensors_[static_cast<size_t>(output.alias)];
    Storage& target = *x->value.storage();
    written.push_back({rank_.policies.view == ViewPolicy::sync ? &target.root() : &target, x});
  }
  std::sort(written.begin(), written.end(),
            [](const auto& a, const auto& b) { return std::less<>()(a.buffer, b.buffer); });
  const auto same = std::adjacent_find(written.begin(), written.end(),
                                       [](const auto& a, const auto& b) { return a.buffer == b.buffer; });
  if (same != written.end()) fail_written_twice(ctx_, to_string(same->tensor->global));
}

}  // namespace shard::call
