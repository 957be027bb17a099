#include "shard/program/capture/captured_backward.h"

#include <algorithm>

#include "shard/api/layout.h"
#include "shard/autograd/grad_mode.h"
#include "shard/core/error.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/creation.h"

namespace shard::program {

namespace {

std::vector<Tensor> outputs_of(const Entry& entry, const BackwardPart& part, const std::vector<Tensor>& inputs) {
  const std::vector<Tensor> outputs = entry.source->function(inputs);
  std::vector<Tensor> found;
  for (const size_t number : part.outputs) {
    const size_t i = entry.trace.gradient->outputs[number];
    if (i < outputs.size() && outputs[i].defined()) found.push_back(outputs[i]);
  }
  return found;
}

/// A zero gradient. Where a reduction is pending, each rank contributes zeros.
Tensor zeros_of(const Type& type) {
  if (type.spec == nullptr) return zeros(IntArray(type.meta.dims), type.meta.dtype, type.device);
  const auto at = type.spec->mesh()->coordinate(current_rank().id());
  if (!at) return make_dist(current_rank(), type.meta, type.spec, absent_value(type.meta));
  const Meta shard = shard_meta(type.meta, *type.spec, *at);
  const Tensor zeros = shard::zeros(IntArray(shard.dims), shard.dtype, type.device);
  return make_dist(current_rank(), type.meta, type.spec, zeros.get().value);
}

/// The tensor as the forward program read it. A view that was resharded keeps that value even if
/// its source has been written since.
Tensor snapshot(const Tensor& source) {
  if (!source.get().value.storage()->stale()) return source;
  Tensor copy(source.impl()->alias());
  DenseTensor& value = copy.get().value;
  value = value.storage()->state() == Storage::State::absent ? absent_value(source.meta()) : clone(value);
  return copy;
}

}  // namespace

EagerBackward::EagerBackward(const Entry& entry, const BackwardPart& part, const Arguments& arguments) : entry_(entry) {
  // operator() throws in these cases.
  if (!entry.source->function || !entry.trace.program.gradients.empty()) return;
  rerun_.emplace([&entry, &part](const std::vector<Tensor>& inputs) { return outputs_of(entry, part, inputs); },
                 arguments.inputs);
  versions_.reserve(arguments.parameters.size());
  for (const Tensor& parameter : arguments.parameters)
    versions_.push_back(parameter.defined() ? parameter.version() : 0);
}

void EagerBackward::operator()(autograd::BackwardContext& context) const {
  if (!entry_.source->function) {
    fail(ErrorCode::autograd,
         "[captured] create_graph calls the captured function again, which a loaded program does not have; do not set "
         "create_graph, or capture the function itself");
  }
  if (!entry_.trace.program.gradients.empty()) {
    fail(ErrorCode::autograd,
         "[captured] create_graph calls the captured function again, which would change the gradients of leaves again; "
         "do not set create_graph, or call backward outside of the function");
  }
  check_unwritten();
  (*rerun_)(context);
}

void EagerBackward::check_unwritten() const {
  const std::vector<Parameter>& parameters = entry_.trace.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = entry_.trace.program.parameters[i].name;
    if (parameters[i].leaf_input >= 0) {
      fail(ErrorCode::autograd,
           "[captured] create_graph calls the captured function again, which reads the gradient of an input ('{}'), "
           "which may have changed since; do not set create_graph, or pass the function a copy of the gradient "
           "(assign(x))",
           name);
    }
    const Tensor now = parameters[i].leaf.defined() ? parameters[i].leaf.grad() : parameters[i].tensor;
    if (!now.defined() || now.version() == versions_[i]) continue;
    fail(ErrorCode::autograd,
         "[captured] create_graph calls the captured function again, but '{}' ({}) has been written since the call: it "
         "was at version {} and is at {}, written last by {}. Call backward before that write, or pass the function a "
         "copy (assign(x))",
         name, now.get().describe(), versions_[i], now.version(),
         LastWrite::text(now.get().value.storage()->last_write()));
  }
}

Backward::Backward(std::shared_ptr<Entry> entry, size_t step, EagerBackward eager, const Arguments& arguments,
                   std::span<const Tensor> values, RandomStart random)
    : entry_(std::move(entry)), step_(step), eager_(std::move(eager)), random_(random) {
  if (!entry_->split) return;
  const Split& split = *entry_->split;
  const BackwardPart& part = entry_->steps[step].all.part;
  values_.resize(split.residuals.size());
  for (const size_t i : part.inputs) {
    if (i >= split.residuals.size()) break;  // the rest are the gradients of outputs
    const Residual& residual = split.residuals[i];
    if (residual.output >= 0) values_[i] = Saved(values[static_cast<size_t>(residual.output) - split.outputs]);
  }
  sources_.resize(split.sources.size());
  for (const size_t i : part.parameters) sources_[i] = Saved(entry_->argument(split.sources[i], arguments).detach());
}

void Backward::operator()(autograd::BackwardContext& context) const {
  if (const std::string& error = entry_->trace.gradient->error; !error.empty())
    fail(ErrorCode::autograd, "[captured] {}", error);
  if (grad_enabled()) return eager_(context);
  const ThreadOwner::Hold hold(entry_->source->owner);
  const std::vector<Tensor> gradients = context.grads_or_none(0);
  std::vector<bool> given;
  for (const Tensor& gradient : gradients) given.push_back(gradient.defined());
  BackwardRun& run = entry_->backward(step_, given);
  check_versions(run.part);
  const Arguments arguments = arguments_of(run.part, gradients);
  const Rank* const rank = current_rank_or_null();
  const SumPolicy sums = rank == nullptr ? SumPolicy::float32 : rank->policies.sums;
  if (!run.executor || run.sums != sums) {
    run.sums = sums;
    ExecutorOptions options = entry_->source->options.executor;
    options.keep_arguments = false;  // frees the residuals that forward has kept for this backward pass
    run.executor = std::make_unique<Executor>(run.part.program, arguments, options);
  }
  context.set_grads<0>(run.executor->run(arguments, random_));
}

/// `gradients` are the gradients of the outputs of the step.
Arguments Backward::arguments_of(const BackwardPart& part, const std::vector<Tensor>& gradients) const {
  Arguments arguments;
  const size_t residuals = values_.size();
  for (size_t k = 0; k < part.inputs.size(); ++k) {
    const size_t i = part.inputs[k];
    if (i < residuals) {
      arguments.inputs.push_back(values_[i].tensor);
      continue;
    }
    const Type& type = part.program.value(part.program.inputs[k].value).type;
    const auto output =
        std::find(part.outputs.begin(), part.outputs.end(), i - residuals);  // empty for a step that does not run
    const Tensor given =
        output == part.outputs.end() ? Tensor() : gradients[static_cast<size_t>(output - part.outputs.begin())];
    arguments.inputs.push_back(!given.defined()       ? zeros_of(type)
                               : type.spec == nullptr ? given
                                                      : reshard(given, type.spec));
  }
  for (const size_t i : part.parameters) arguments.parameters.push_back(snapshot(sources_[i].tensor));
  return arguments;
}

void Backward::check_versions(const BackwardPart& part) const {
  for (const size_t i : part.inputs) {
    if (i < values_.size()) check_version(values_[i], "an output");
  }
  for (size_t k = 0; k < part.parameters.size(); ++k)
    check_version(sources_[part.parameters[k]], fmt::format("'{}'", part.program.parameters[k].name));
}

void Backward::check_version(const Saved& saved, std::string_view name) {
  const Tensor& tensor = saved.tensor;
  if (!tensor.defined() || tensor.version() == saved.version) return;
  const LastWrite* const write = tensor.get().value.storage()->last_write();
  fail(ErrorCode::autograd,
       "[captured] backward reads {} ({}) as the captured function had it: version {}, but it is at version {}, "
       "written last by {}. Call backward before that write, or pass the function a copy (assign(x))",
       name, tensor.get().describe(), saved.version, tensor.version(), LastWrite::text(write));
}

}  // namespace shard::program
