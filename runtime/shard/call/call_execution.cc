#include "shard/call/call_execution.h"

#include <algorithm>

#include "shard/call/plan_checks.h"
#include "shard/call/resharded_inputs.h"
#include "shard/reshard/execute.h"

namespace shard::call {

CallExecution::CallExecution(CallArgs& args)
    : args_(args), recorded_(args.tracer == nullptr && (args.rank.dry || args.rank.trace_calls || args.rank.observer)),
      locals_(args.cache.take_list()), results_(args.cache.take_list()) {
  if (recorded_) begin_ns_ = now_ns();
  if (recorded_ && args.rank.dry) before_ = args.rank.stats();
}

void CallExecution::run(const CallPlan& plan, const InferEntry& infer, FunctionRef<void()> kernel) {
  plan_ = &plan;
  CommQueue& queue = args_.rank.comm_queue();
  const uint64_t call = queue.calls_done() + 1;
  try {
    prepare(infer);
    if (plan.active && !plan.relayout) run_kernel(kernel);
    queue.set_calls_done(call);
    if (args_.tracer != nullptr) capture();
    finish();
  } catch (...) { fail_call(call); }
  if (plan.checked) args_.mark_maybe_poisoned(call);
  if (recorded_) record_call();
}

void CallExecution::run_kernel(FunctionRef<void()> kernel) {
  if (!plan_->in_float32) return kernel();
  const Float32Call converted(ctx_, *plan_, locals_);
  kernel();
  convert_results(converted);
}

void CallExecution::run_dry(const CallPlan& plan, DryLauncher& launcher, AxisReducer& reducer,
                            FunctionRef<void()> kernel) {
  const struct Restore {
    CallExecution& execution;
    ~Restore() {
      execution.locals_.clear();
      execution.results_.clear();
      execution.ctx_ = execution.args_.ctx;
      execution.local_ = {};
    }
  } restore{*this};
  plan_ = &plan;
  ctx_.launcher = &launcher;
  ctx_.local = &local_;
  local_.inputs = plan.input_boxes;
  local_.outputs = plan.output_boxes;
  local_.reducer = &reducer;
  for (size_t i = 0; i < args_.tensors.size(); ++i) {
    const DistTensorImpl* const x = args_.tensors[i];
    Meta shard = plan.input_shards[i];
    if (plan.in_float32) shard.dtype = compute_dtype(shard.dtype);
    locals_.push_back(x == nullptr ? DenseTensor() : DenseTensor::allocate(x->value.device(), shard, &launcher.meter));
  }
  results_.resize(plan.outputs.size());
  kernel();
}

void CallExecution::prepare(const InferEntry& infer) {
  // From here on kernels and infer_meta see local shards. User errors were thrown before, from the
  // global metas.
  ctx_.local = &local_;
  local_.inputs = plan_->input_boxes;
  local_.outputs = plan_->output_boxes;
  if (plan_->checks_rule) [[unlikely]]
    check_rule(ctx_, args_, *plan_, infer);
  for (const OutputPlan& output : plan_->outputs) {
    if (!output.written) continue;
    const DistTensorImpl& x = *args_.tensors[static_cast<size_t>(output.alias)];
    if (args_.rank.policies.view == ViewPolicy::temporary && x.value.storage()->detachment() != nullptr)
      separate(*x.value.storage());
    if (output.kind != AliasDef::Kind::inplace) continue;
    // Whether the local shape changes differs from rank to rank, but whether the global shape
    // changes does not.
    const bool new_buffer = !(output.global == x.global) || (!output.write_back && output.spec != x.spec);
    local_.replace_targets = local_.replace_targets || new_buffer;
  }
  if (args_.checks_promoted()) args_.check_promoted();
  if (args_.extras() != nullptr) args_.extras()->stale.settle(args_.rank.policies.view);
  if (args_.op.random) local_.random = args_.rank.generator.draw();
  locals_.reserve(args_.tensors.size());
  for (size_t i = 0; i < args_.tensors.size(); ++i) {
    const InputPlan& input = plan_->inputs[i];
    if (args_.tensors[i] == nullptr) locals_.emplace_back();
    else if (input.shape_only && plan_->active) locals_.push_back(local_shape_of(i));
    else if (!input.move) locals_.push_back(args_.tensors[i]->value);
    else locals_.push_back(reshard_input(i));
  }
  results_.resize(plan_->outputs.size());
  if (args_.tracer != nullptr) captured_inputs_ = locals_;
  if (!plan_->reduce_axes.empty() && plan_->active && args_.tracer == nullptr) {
    reducer_ = std::make_unique<MeshReducer>(args_.rank, *plan_, args_.op.name);
    local_.reducer = reducer_.get();
  }
}

/// An argument of which the op reads only the shape: its storage with the local shape of the layout
/// that the op computes in.
DenseTensor CallExecution::local_shape_of(size_t i) const {
  DenseTensor shape(args_.tensors[i]->value.storage(), plan_->input_shards[i]);
  shape.set_symbol(args_.tensors[i]->value.symbol());
  return shape;
}

void CallExecution::convert_results(const Float32Call& converted) {
  for (size_t o = 0; o < plan_->outputs.size(); ++o) {
    const OutputPlan& output = plan_->outputs[o];
    DenseTensor& result = output.alias >= 0 && output.kind == AliasDef::Kind::inplace
                              ? locals_[static_cast<size_t>(output.alias)]
                              : results_[o];
    result = converted.output(o, result);
  }
}

void CallExecution::capture() {
  if (plan_->relayout) return;  // the reshard is all that is recorded
  std::vector<const DenseTensor*> inputs;
  for (const DenseTensor& input : captured_inputs_) inputs.push_back(input.defined() ? &input : nullptr);
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
        output.kind == AliasDef::Kind::inplace && output.written && (local_.replace_targets || beside);
    out.meta = output.global;
    out.spec = output.spec;
    out.device = device;
    if (output.alias >= 0 && !replaced) out.shares = output.alias;
    out.written = out.shares >= 0 && output.written;
  }
  std::vector<Attr> attrs;
  for (const AttrRef& attr : args_.attrs)
    attrs.push_back(std::visit([](const auto* value) { return Attr(*value); }, attr));
  symbols_ = args_.tracer->call({args_.op, args_.inplace, inputs, args_.slots, std::move(attrs), args_.layout, outputs,
                                 plan_->output_slots, local_.random.offset});
}

DenseTensor CallExecution::reshard_input(size_t i) const {
  const InputPlan& input = plan_->inputs[i];
  DenseTensor moved = execute_reshard(args_.rank, *input.move, args_.tensors[i]->value, cause_of(i));
  if (ReshardedInputs* const wanted = ReshardedInputs::current()) wanted->add(args_.tensors[i], input.want, moved);
  return moved;
}

void CallExecution::reinterpret() {
  DenseTensor shard = locals_[0].reinterpret(plan_->output_shards[0]);
  if (args_.inplace) locals_[0] = std::move(shard);
  else results_[0] = std::move(shard);
}

void CallExecution::set(size_t slot, std::vector<DenseTensor> values) {
  const SlotRange& range = plan_->output_slots[slot];
  if (values.size() != range.count) {
    fail(ErrorCode::internal,
         "[{}] computed {} local shards of '{}', but there are {}; its infer_meta function is wrong", ctx_.op,
         values.size(), args_.op.outputs[slot].name, range.count);
  }
  std::move(values.begin(), values.end(), results_.begin() + static_cast<std::ptrdiff_t>(range.first));
}

Tensor CallExecution::output(size_t o) {
  const OutputPlan& output = plan_->outputs[o];
  if (output.spec == nullptr) return {};
  mark(results_[o], o);
  return make_dist(args_.rank, output.dynamic ? dynamic_[o] : output.global, output.spec, std::move(results_[o]));
}

void CallExecution::record_call() {
  const CallArgs::Extras* const extras = args_.extras();
  if (args_.rank.trace_calls) {
    TraceEvent event;
    event.name = event.op = ctx_.op;
    event.bytes = plan_->bytes + (extras ? extras->moment.bytes : 0);
    event.begin_ns = begin_ns_;
    event.end_ns = now_ns();
    args_.rank.trace.record(event);
  }
  if (args_.rank.dry)
    args_.cache.dry_calls.add(ctx_.op, describe_shards(args_.op, *plan_), args_.rank.stats(), before_);
  if (!args_.rank.observer) return;
  CallRecord record = describe(args_.op, ctx_.op, *plan_, args_.rank.policies.view);
  if (extras) {
    record.bytes += extras->moment.bytes;
    if (!extras->moment.text.empty()) record.reshards += (record.reshards.empty() ? "" : ";") + extras->moment.text;
  }
  args_.rank.observer(record);
}

}  // namespace shard::call
