// The end of a distributed call: what becomes of its results, by how they share buffers with arguments.
#include "call/dense_call.h"
#include "call/dist_call.h"
#include "call/exchange.h"
#include "call/failed_call.h"
#include "comm/reduce.h"
#include "core/error.h"
#include "core/recorder.h"
#include "reshard/execute.h"

namespace shard::call {
namespace {

/// What an absent rank, or this one, has of an output that shares the buffer of `shared`.
DenseTensor absent_like(const DenseTensor& shared, const Meta& global) {
  DenseTensor absent(shared.storage(), {Dims::filled(global.dims.rank(), 0), global.dtype});
  absent.set_symbol(shared.symbol());
  return absent;
}

}  // namespace

void DistCall::finish() {
  started_ = true;  // a kernel that failed has poisoned what it wrote itself
  if (op_.dynamic_outputs != 0) finish_dynamic();
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    const OutputPlan& output = plan_->outputs[o];
    if (output.spec == nullptr || output.dynamic) continue;
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
    check_piece(o, results_[o]);
  }
}

/// Rows come as each piece has them. All ranks of the world learn how many there are, and those of the mesh get even shares.
void DistCall::finish_dynamic() {
  std::vector<size_t> dynamic;
  std::vector<uint64_t> mine;
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    if (!plan_->outputs[o].dynamic) continue;
    dynamic.push_back(o);
    mine.push_back(plan_->active ? static_cast<uint64_t>(results_[o].dims()[0]) : 0);
  }
  const auto ranks = static_cast<size_t>(rank_.world().size());
  std::vector<uint64_t> all;
  if (plan_->exchanges_rows) all = gather_words(rank_, mine, {op_.name, "row counts"});
  else for (size_t r = 0; r < ranks; ++r) all.insert(all.end(), mine.begin(), mine.end());
  extras().dynamic.resize(plan_->outputs.size());
  for (size_t k = 0; k < dynamic.size(); ++k) {
    const size_t o = dynamic[k];
    const OutputPlan& output = plan_->outputs[o];
    std::vector<int64_t> rows;
    for (size_t r = 0; r < ranks; ++r) rows.push_back(static_cast<int64_t>(all[r * dynamic.size() + k]));
    const RowPieces pieces(output.spec, std::move(rows), {op_.name, "result"});
    Meta& global = extras_->dynamic[o] = output.global;
    global.dims[0] = pieces.total();
    results_[o] = plan_->active ? pieces.balance(rank_, results_[o]) : absent_value(global);
  }
}

void DistCall::fill_with_identity(DenseTensor& piece) const {
  if (!piece.has_data()) return;
  if (piece.device() != kCpu) {
    fail(ErrorCode::mixed_device, "[{}] cannot make {} on {}: contributions to a pending reduction are made on the CPU; make it there, and reshard it first",
         op_.name, layout_->text(), to_string(piece.device()));
  }
  fill_identity(piece.raw(), piece.numel(), piece.dtype(), *plan_->identity);
}

void DistCall::fail_piece(const OutputPlan& output, const DenseTensor& piece, const Dims& dims) const {
  fail(ErrorCode::internal, "[{}] computed a piece {} where layout {} of {} has {}; its placement rule is wrong", op_.name,
       to_string(piece.meta()), output.spec->text(), to_string(output.global), to_string(dims));
}

void DistCall::finish_view(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  const auto i = static_cast<size_t>(output.alias);
  if (!plan_->active) results_[o] = absent_like(locals_[i], output.global);
  else if (plan_->relayout) results_[o] = locals_[i];
  if (plan_->inputs[i].move && rank_.policies.view != ViewPolicy::temporary) detach(locals_[i].storage(), i);
}

void DistCall::finish_written_view(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  const auto i = static_cast<size_t>(output.alias);
  const DenseTensor& x = tensors_[i]->value;
  if (!plan_->active) results_[o] = absent_like(locals_[i], output.global);
  if (!plan_->inputs[i].move) {
    x.storage()->bump(ctx_.op);
  } else {
    locals_[i].storage()->bump(ctx_.op);
    if (!output.write_back) return;  // ViewPolicy::temporary: the two part
    const DenseTensor back = execute_reshard(rank_, *output.write_back, locals_[i], {op_.name, "write-back"});
    copy_over(tensors_[i]->value, back);
    x.storage()->bump(ctx_.op);
    detach(locals_[i].storage(), i);
  }
  if (rank_.policies.view == ViewPolicy::sync) x.storage()->write_back_to_source(ctx_.op);
}

void DistCall::finish_inplace(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  const auto i = static_cast<size_t>(output.alias);
  DistTensorImpl& x = *tensors_[i];
  DenseTensor result = locals_[i];
  if (!plan_->active) result = absent_like(result, output.global);
  mark(result, o);
  check_piece(o, result);
  const bool written = writes(output);
  // The same value in the same shape: a target that had to move for a reader of it is left where it is.
  if (!written && output.global == x.global && rank_.policies.inplace != InplacePolicy::adopt) return;
  if (output.write_back) {
    const DenseTensor back = execute_reshard(rank_, *output.write_back, result, {op_.name, "write-back"});
    copy_over(x.value, back);
    x.value.storage()->bump(ctx_.op);
  } else if (written && output.global == x.global && !plan_->inputs[i].move && output.spec == x.spec) {
    if (local_.replace_targets) copy_over(x.value, result);  // the kernel has made it in a buffer of its own
    else x.value.set_symbol(result.symbol());
    x.value.storage()->bump(ctx_.op);
  } else {
    // Another shape, dtype or layout. A written result always has a new buffer; also where there are no bytes.
    if (written && result.storage() == x.value.storage()) {
      const uint32_t symbol = result.symbol();
      result = absent_value(output.global);
      result.set_symbol(symbol);
    }
    if (result.storage() == x.value.storage()) x.value = std::move(result);
    else replace_buffer(ctx_.op, x.value, std::move(result), written);
    x.global = output.global;
    x.spec = output.spec;
  }
  if (written && rank_.policies.view == ViewPolicy::sync) x.value.storage()->write_back_to_source(ctx_.op);
}

void DistCall::doubt(uint64_t call) {
  for (const OutputPlan& output : plan_->outputs) {
    if (writes(output)) tensors_[static_cast<size_t>(output.alias)]->value.storage()->doubt(rank_.torn_calls(), call);
  }
}

void DistCall::report_failure(uint64_t call) {
  rank_.comm_queue().calls_done = call;
  if (ctx_.dry != nullptr) return;
  doubt(call);
  report_failed_call(rank_, call, std::current_exception(), "\n  in the call " + call_text());
}

void DistCall::copy_over(DenseTensor& to, const DenseTensor& from) const {
  if (ctx_.recorder != nullptr) ctx_.recorder->copy(to, from);
  else if (plan_->active) copy_into(to, from);
}

void DistCall::detach(const Ref<Storage>& copy, size_t i) {
  const DistTensorImpl& x = *tensors_[i];
  const auto move = plan_->inputs[i].move;
  // The closures are kept by the copy itself, so they must not own it.
  Storage* const self = copy.get();
  const DenseTensor source = x.value;
  const Meta local = locals_[i].meta();
  Rank* const rank = &rank_;
  const CommCause cause{op_.name, op_.inputs[static_cast<size_t>(plan_->inputs[i].slot)].name};
  const auto own = [self, local, symbol = locals_[i].symbol()] {
    self->retain();
    DenseTensor tensor(Ref<Storage>::adopt(self), local);
    tensor.set_symbol(symbol);
    return tensor;
  };
  const auto copy_bytes = [](DenseTensor to, const DenseTensor& from) {
    if (Recorder* const recorder = Recorder::current()) recorder->copy(to, from);
    else if (from.storage()->state() != Storage::State::absent) copy_into(to, from);
  };
  const auto refresh = [rank, move, source, own, cause, copy_bytes] {
    const DenseTensor fresh = execute_reshard(*rank, *move, source, cause);
    copy_bytes(own(), fresh);
  };
  const auto write_back = [rank, move, source, own, cause, copy_bytes] {
    const bool relayout = move->steps.size() == 1 && move->steps[0].kind == ReshardStep::Kind::relayout;
    const auto back = relayout ? plan_relayout(move->after_meta, move->to, move->meta.dims, move->from)
                               : plan_reshard(move->meta, move->to, move->from);
    const DenseTensor value = execute_reshard(*rank, *back, own(), cause);
    copy_bytes(source, value);
  };
  copy->detach({source.storage(), source.storage()->version(), std::string(op_.name), std::string(cause.argument), x.spec->text(),
                move->to->text(), refresh, write_back});
}

}  // namespace shard::call
