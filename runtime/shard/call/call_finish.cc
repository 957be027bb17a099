// The last part of a distributed call: finishes each result according to the buffer that it shares
// with an argument.
#include <fmt/format.h>

#include "shard/call/call_execution.h"
#include "shard/call/exchange.h"
#include "shard/comm/buffers.h"
#include "shard/core/error.h"
#include "shard/reshard/execute.h"

namespace shard::call {
namespace {

/// The value, on a rank outside the mesh, of an output that shares the buffer of `shared`.
DenseTensor absent_like(const DenseTensor& shared, const Meta& global) {
  DenseTensor absent(shared.storage(), {Dims::filled(global.dims.rank(), 0), global.dtype});
  absent.set_symbol(shared.symbol());
  return absent;
}

}  // namespace

void CallExecution::finish() {
  finishing_ = 0;  // if a kernel failed before, it has poisoned what it wrote itself
  check_combined();
  if (args_.op.dynamic_outputs != 0) finish_dynamic();
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    const OutputPlan& output = plan_->outputs[o];
    if (output.spec == nullptr || output.dynamic) continue;
    finishing_ = static_cast<int>(o);
    if (output.alias < 0) {
      if (!plan_->active) results_[o] = absent_value(output.global);
      else if (plan_->identity) fill_with_identity(results_[o]);
    } else if (output.kind == AliasDef::Kind::inplace) {
      finish_inplace(o);
      continue;
    } else if (output.kind == AliasDef::Kind::view) {
      finish_view(o);
    } else {
      finish_written_view(o);
    }
    check_result(o, results_[o]);
  }
}

/// A kernel that was registered in place of one that combines values may not know that it has to: its result
/// would be that of one shard.
void CallExecution::check_combined() const {
  if (reducer_ == nullptr || plan_->kernel_bytes == 0 || reducer_->used()) return;
  fail(ErrorCode::no_kernel,
       "[{}] the registered kernel '{}' did not use ctx.reducer(), but with these layouts {}; call it as the "
       "built-in kernel does, or reshard the arguments before the call",
       args_.op.name, args_.op.kernel, kernel_text(*plan_));
}

/// Finishes outputs whose number of rows comes from data. Each local shard has as many rows as its
/// rank computed. All ranks of the world learn the row counts, and the ranks of the mesh rebalance
/// the rows to even shards.
void CallExecution::finish_dynamic() {
  std::vector<size_t> dynamic;
  std::vector<uint64_t> mine;
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    if (!plan_->outputs[o].dynamic) continue;
    dynamic.push_back(o);
    mine.push_back(plan_->active ? static_cast<uint64_t>(results_[o].dims()[0]) : 0);
  }
  const auto ranks = static_cast<size_t>(args_.rank.world().size());
  std::vector<uint64_t> all;
  if (plan_->exchanges_rows) all = gather_words(args_.rank, mine, {args_.op.name, "row counts"});
  else
    for (size_t r = 0; r < ranks; ++r) all.insert(all.end(), mine.begin(), mine.end());
  dynamic_.resize(plan_->outputs.size());
  for (size_t k = 0; k < dynamic.size(); ++k) {
    const size_t o = dynamic[k];
    const OutputPlan& output = plan_->outputs[o];
    std::vector<int64_t> rows;
    for (size_t r = 0; r < ranks; ++r) rows.push_back(static_cast<int64_t>(all[r * dynamic.size() + k]));
    const RowShards shards(output.spec, std::move(rows), {args_.op.name, "result"});
    Meta& global = dynamic_[o] = output.global;
    global.dims[0] = shards.total();
    results_[o] = plan_->active ? shards.balance(args_.rank, results_[o]) : absent_value(global);
  }
}

void CallExecution::fill_with_identity(DenseTensor& shard) const {
  check_communicates(shard.device(), args_.op.name, "layout");
  if (!shard.has_data()) return;
  fill_identity(shard.device(), shard.raw(), shard.numel(), shard.dtype(), *plan_->identity);
}

void CallExecution::finish_view(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  const auto i = static_cast<size_t>(output.alias);
  if (!plan_->active) results_[o] = absent_like(locals_[i], output.global);
  else if (plan_->relayout) results_[o] = locals_[i];
  if (plan_->inputs[i].move && args_.rank.policies.view != ViewPolicy::temporary) detach(locals_[i], i);
}

void CallExecution::finish_written_view(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  const auto i = static_cast<size_t>(output.alias);
  const DenseTensor& x = args_.tensors[i]->value;
  if (!plan_->active) results_[o] = absent_like(locals_[i], output.global);
  if (!plan_->inputs[i].move) {
    x.storage()->bump(ctx_.op);
  } else {
    locals_[i].storage()->bump(ctx_.op);
    if (!output.write_back) return;  // ViewPolicy::temporary: the view is separated from x
    const DenseTensor back = execute_reshard(args_.rank, *output.write_back, locals_[i], {args_.op.name, "write-back"});
    copy_over(args_.tensors[i]->value, back);
    x.storage()->bump(ctx_.op);
  }
  if (args_.rank.policies.view == ViewPolicy::sync) x.storage()->write_back_to_source(ctx_.op);
  if (plan_->inputs[i].move) detach(locals_[i], i);  // only now is x in sync with its own source
}

void CallExecution::finish_inplace(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  const auto i = static_cast<size_t>(output.alias);
  DistTensorImpl& x = *args_.tensors[i];
  DenseTensor result = locals_[i];
  if (!plan_->active) result = absent_like(result, output.global);
  mark(result, o);
  check_result(o, result);
  const bool written = output.written;
  // The value and shape are unchanged. A target that was resharded only for this op to read stays
  // in its layout.
  if (!written && output.global == x.global && args_.rank.policies.inplace != InplacePolicy::adopt) return;
  if (output.write_back) {
    const DenseTensor back = execute_reshard(args_.rank, *output.write_back, result, {args_.op.name, "write-back"});
    copy_over(x.value, back);
    x.value.storage()->bump(ctx_.op);
  } else if (written && output.global == x.global && output.spec == x.spec) {
    if (local_.replace_targets || plan_->inputs[i].move)
      copy_over(x.value, result);  // the kernel wrote the result to a buffer of its own
    else x.value.set_symbol(result.symbol());
    x.value.storage()->bump(ctx_.op);
  } else {
    // The shape, dtype or layout changes. A written result always has a new buffer, also where it
    // has no bytes.
    if (written && result.storage() == x.value.storage()) {
      const uint32_t symbol = result.symbol();
      result = absent_value(output.global);
      result.set_symbol(symbol);
    }
    if (result.storage() == x.value.storage()) x.value = std::move(result);
    else replace_target(output, std::move(result), written);
    x.global = output.global;
    x.spec = output.spec;
  }
  if (written && args_.rank.policies.view == ViewPolicy::sync) x.value.storage()->write_back_to_source(ctx_.op);
}

void CallExecution::fail_call(uint64_t call) const {
  args_.report_failure(call);
  for (size_t o = 0; finishing_ >= 0 && o < plan_->outputs.size(); ++o) {
    const OutputPlan& output = plan_->outputs[o];
    if (!output.written) continue;
    const auto poison = [&](Storage& storage) { storage.poison(std::current_exception(), ctx_.op); };
    Storage& target = *args_.tensors[static_cast<size_t>(output.alias)]->value.storage();
    poison(target);
    if (args_.rank.policies.view == ViewPolicy::sync && static_cast<int>(o) <= finishing_)
      target.for_each_source(poison);
  }
  try {
    throw;
  } catch (const Error& error) { args_.rethrow(error); }
}

void CallExecution::copy_over(DenseTensor& to, const DenseTensor& from) const {
  if (args_.tracer != nullptr) args_.tracer->copy(to, from);
  else if (plan_->active) copy_into(to, from);
}

/// Makes `copy`, to which an argument was resharded, a stale copy of the argument once that is
/// written.
void CallExecution::detach(const DenseTensor& copy, size_t i) {
  const DistTensorImpl& x = *args_.tensors[i];
  const auto& move = plan_->inputs[i].move;
  const CommCause cause = cause_of(i);
  ViewLink::attach(std::make_shared<ViewLink>(args_.rank, x.value, copy, move, nullptr, cause), copy.storage(),
                   x.value.storage()->version(), ctx_.op, cause.argument, x.spec->text(), move->to->text());
}

/// The target now has another shape, dtype or layout. It leaves its old buffer, which other tensors
/// may share.
void CallExecution::replace_target(const OutputPlan& output, DenseTensor result, bool written) {
  const auto i = static_cast<size_t>(output.alias);
  DistTensorImpl& x = *args_.tensors[i];
  const Ref<Storage> old = x.value.storage(), now = result.storage();
  const bool sync = args_.rank.policies.view == ViewPolicy::sync;
  now->set_version(old->version());
  if (written) now->bump(ctx_.op);
  // The value right after its reshard, if nothing else has happened to it.
  DenseTensor moved = result;
  if (!written && !plan_->relayout && plan_->active) moved = result.reinterpret(plan_->input_shards[i]);
  moved.set_symbol(result.symbol());
  const auto& plan = written ? output.adopted : plan_->inputs[i].move;
  const CommCause cause = cause_of(i);
  std::shared_ptr<ViewLink> link;
  if (args_.rank.policies.view == ViewPolicy::temporary) {
    // The target is separated from its source.
  } else if (is_view(x)) {
    // The target stays a view of its source if its elements were only resharded, or if they are
    // written back. Otherwise it is separated from the source.
    if (const Detachment* const from = old->detachment(); from != nullptr && !written && !sync) {
      now->detach(
          {from->source, from->source_version, from->op, from->argument, from->from, from->to, {}, {}, from->origin});
    } else if (!written) {
      detach(moved, i);
    } else if (plan) {
      link = std::make_shared<ViewLink>(args_.rank, x.value, result, plan, nullptr, cause);
      ViewLink::attach(link, now, old->version(), ctx_.op, cause.argument, x.spec->text(), output.spec->text());
    }
  } else {
    // Tensors that share the old buffer become copies of the new one, with the value before a
    // write.
    const auto text = [](const Meta& global, const DistSpec& spec) {
      return fmt::format("{} {}", to_string(global), spec.text());
    };
    const std::string before = text(x.global, *x.spec), after = text(output.global, *output.spec);
    if (sync && plan) link = std::make_shared<ViewLink>(args_.rank, moved, x.value, nullptr, plan, cause);
    if (link) ViewLink::attach(link, old, now->version() - (written ? 1 : 0), ctx_.op, "", before, after);
    else old->detach({now, now->version(), ctx_.op, "", before, after, {}, {}});
  }
  x.value = std::move(result);
}

}  // namespace shard::call
