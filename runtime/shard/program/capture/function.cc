#include "shard/program/capture/function.h"

#include <algorithm>
#include <list>

#include "shard/autograd/record.h"
#include "shard/call/view_link.h"
#include "shard/core/error.h"
#include "shard/core/writing.h"
#include "shard/dist/dist_tensor.h"
#include "shard/program/capture/captured_backward.h"
#include "shard/program/capture/fit_check.h"
#include "shard/program/io/json.h"
#include "shard/program/passes/rematerialize.h"

namespace shard {
namespace {

using autograd::OwnedEdge;
using call::KeyWords;
using program::Arguments;
using program::Backward;
using program::CaptureSource;
using program::EagerBackward;
using program::Entry;
using program::Executor;
using program::GradientStep;
using program::Named;
using program::Program;
using program::Split;
using program::ThreadOwner;
using program::Trace;

constexpr OpDef kCaptured = {.name = "captured", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

}  // namespace

struct CapturedFunction::State {
  std::shared_ptr<CaptureSource> source = std::make_shared<CaptureSource>();
  std::optional<Trace> loaded;                // replaces the function, for a loaded program
  std::list<std::shared_ptr<Entry>> entries;  // most recently used first
  CaptureStats stats;

  std::shared_ptr<Entry> find(const KeyWords& key, Arguments& arguments) {
    for (auto at = entries.begin(); at != entries.end(); ++at) {
      if (!((*at)->key == key)) continue;
      arguments.parameters = program::parameters_of(**at, arguments.inputs);
      if (!program::fits(**at, arguments)) continue;
      entries.splice(entries.begin(), entries, at);
      return entries.front();
    }
    return nullptr;
  }

  std::shared_ptr<Entry> get(Arguments& arguments) {
    const KeyWords key = program::key_of(arguments.inputs);
    if (std::shared_ptr<Entry> found = find(key, arguments)) {
      ++stats.hits;
      return found;
    }
    ++stats.misses;
    auto entry = std::make_shared<Entry>();
    const CaptureOptions& options = source->options;
    entry->trace = loaded ? *loaded : program::trace(source->function, arguments.inputs, options.scope);
    entry->source = source;
    entry->key = key;
    arguments.parameters = program::parameters_of(*entry, arguments.inputs);
    if (loaded) program::check_fit(entry->trace, arguments);
    entry->sharing = program::sharing_key(arguments);
    entry->parameters = program::types_key(arguments.parameters);
    const bool has_backward = entry->trace.gradient && entry->trace.gradient->error.empty();
    const bool recomputes = options.passes && options.memory_goal > 0 &&
                            std::find(options.skip.begin(), options.skip.end(), "rematerialize") == options.skip.end();
    if (has_backward && recomputes) entry->trace = program::rematerialize(std::move(entry->trace), options.memory_goal);
    entry->trace.program.verify();
    entry->index();
    if (has_backward) {
      entry->split = program::split(entry->trace);
      entry->split->forward.verify();
      entry->split->backward.verify();
      entry->split->forward = source->improved(std::move(entry->split->forward));
    } else {
      entry->whole = source->improved(entry->trace.program, options.memory_goal);
    }
    if (entry->trace.gradient) {
      for (program::BackwardPart& part : program::parts_of(entry->split.value_or(Split()), *entry->trace.gradient)) {
        if (has_backward) part.program = source->improved(std::move(part.program));
        entry->steps.push_back({.all = {std::move(part)}});
      }
    }
    entries.push_front(entry);
    if (entries.size() > std::max<size_t>(source->options.capacity, 1)) {
      entries.pop_back();
      ++stats.evictions;
    }
    return entry;
  }
};

namespace {

/// Sets the gradients of leaves to what the program has left in them.
void set_gradients(const Entry& entry, const Arguments& arguments) {
  const Program& program = entry.program();
  if (program.gradients.empty()) return;
  const NoGrad off;
  const std::vector<Tensor> gradients = entry.forward->gradients(arguments);
  for (size_t i = 0; i < gradients.size(); ++i)
    program::tensor_of(entry.trace.leaves[entry.leaf_of[i]], arguments.inputs).set_grad(gradients[i]);
}

/// Makes outputs that are views of a resharded copy stale copies of their sources, like those of
/// eager calls.
void detach_outputs(const Entry& entry, const Arguments& arguments, const std::vector<Tensor>& outputs) {
  const Program& joint = entry.trace.program;
  for (const program::DetachedOutput& each : entry.trace.detached) {
    Tensor source = entry.argument(each.source, arguments);
    for (size_t i = 0; i < outputs.size() && !source.defined(); ++i) {
      if (outputs[i].defined() && joint.outputs[i].value == each.source) source = outputs[i];
    }
    const Ref<Storage>& storage = source.get().value.storage();
    const Ref<Storage>& view = outputs[each.output].get().value.storage();
    // A view that is stale already was never in sync with its source as it is now. If nobody sees
    // the source, the view itself takes its place.
    const Ref<Storage> from = storage == view ? Storage::absent() : storage;
    view->detach({from, from->version() - (each.stale ? 1 : 0), each.op, each.argument, each.from, each.to, {}, {}});
  }
}

/// Under ViewPolicy::sync, refreshes stale views before they are read. This is a call of its own.
void refresh(const Entry& entry, const Arguments& arguments) {
  Rank* const rank = current_rank_or_null();
  if (rank == nullptr || rank->policies.view != ViewPolicy::sync) return;
  const ProcessMesh* mesh = nullptr;
  std::vector<Storage*> read;
  const auto add = [&](const std::vector<Named>& names, const std::vector<Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      if (!tensor.defined() || !tensor.is_dist() || !entry.is_read(names[i].value)) continue;
      read.push_back(tensor.get().value.storage().get());
      mesh = dist_impl(tensor).spec->mesh();
    }
  };
  add(entry.trace.program.inputs, arguments.inputs);
  add(entry.trace.program.parameters, arguments.parameters);
  if (!read.empty()) call::refresh_views(*rank, *mesh, read);
}

/// Checks, before anything is written, what an in-place op would refuse.
void check_written(const Entry& entry, const Arguments& arguments) {
  for (const program::ValueId id : entry.written) {
    for (const Named& input : entry.trace.program.inputs) {
      if (input.value == id) autograd::check_written(kCaptured.name, input.name, entry.argument(id, arguments));
    }
  }
}

/// Gives a history to the tensors that written views are views of. A base that is an argument
/// itself has got its own history.
void update_base_histories(const Entry& entry, const Arguments& arguments) {
  std::vector<const TensorImpl*> written;
  for (const program::ValueId id : entry.written) written.push_back(entry.argument(id, arguments).impl().get());
  for (const program::ValueId id : entry.written) {
    const Tensor argument = entry.argument(id, arguments);
    if (std::find(written.begin(), written.end(), argument.get().grad.root.get()) == written.end())
      autograd::rebase_root(argument);
  }
}

void mark_views(const Entry& entry, const Arguments& arguments, const std::vector<Tensor>& outputs) {
  for (const program::ViewOutput& view : entry.trace.views) {
    autograd::mark_view(kCaptured.name.data(),
                        view.source != 0 ? entry.argument(view.source, arguments) : outputs[view.other],
                        outputs[view.output]);
  }
}

}  // namespace

CapturedFunction::CapturedFunction(program::Function function, CaptureOptions options)
    : state_(std::make_shared<State>()) {
  if (!function)
    fail(ErrorCode::invalid_argument,
         "[CapturedFunction] there is no function to capture; pass one that takes and returns tensors");
  state_->source->function = std::move(function);
  state_->source->options = std::move(options);
}
CapturedFunction::CapturedFunction(Trace loaded) : state_(std::make_shared<State>()) {
  state_->loaded = std::move(loaded);
}
CapturedFunction::~CapturedFunction() = default;
CapturedFunction::CapturedFunction(const CapturedFunction&) = default;
CapturedFunction& CapturedFunction::operator=(const CapturedFunction&) = default;

std::vector<Tensor> CapturedFunction::operator()(const std::vector<Tensor>& inputs, CallSite site) {
  if (this_thread.launcher != nullptr) {
    if (state_->source->function) return state_->source->function(inputs);
    fail(ErrorCode::capture,
         "[captured] a loaded program runs neither in a dry world nor inside of another capture, because both need the "
         "function that it was captured from");
  }
  const ThreadOwner::Hold hold(state_->source->owner);
  Arguments arguments{inputs, {}};
  const std::shared_ptr<Entry> entry = state_->get(arguments);
  if (grad_enabled()) check_written(*entry, arguments);
  refresh(*entry, arguments);
  autograd::note_reads(arguments.inputs, arguments.parameters);
  entry->prepare_forward(arguments);
  std::vector<EagerBackward> eager;
  // The edges of all steps, taken before written arguments get another history.
  std::vector<std::vector<OwnedEdge>> edges;
  for (const GradientStep& step : entry->steps) {
    eager.emplace_back(*entry, step.all.part, arguments);
    std::vector<OwnedEdge>& of_step = edges.emplace_back();
    for (const size_t i : step.all.part.wanted)
      of_step.push_back(autograd::edge_of(entry->argument(entry->trace.gradient->wanted[i], arguments)));
  }
  std::vector<Tensor> outputs;
  {
    const Writing writing(site);
    outputs = entry->forward->run(arguments);
  }
  set_gradients(*entry, arguments);
  detach_outputs(*entry, arguments, outputs);
  if (!entry->trace.gradient) {
    mark_views(*entry, arguments, outputs);
    return outputs;
  }
  const size_t own = entry->split ? entry->split->outputs : outputs.size();
  const std::vector<Tensor> values(outputs.begin() + static_cast<std::ptrdiff_t>(own), outputs.end());
  outputs.resize(own);
  const program::TracedGradient& gradient = *entry->trace.gradient;
  for (size_t p = 0; p < entry->steps.size(); ++p) {
    const program::BackwardPart& part = entry->steps[p].all.part;
    autograd::Recording record(site, kCaptured, std::move(edges[p]));
    std::vector<Tensor> differentiable;
    for (const size_t i : part.outputs) differentiable.push_back(outputs[gradient.outputs[i]]);
    Backward backward(entry, p, std::move(eager[p]), arguments, values, entry->forward->random_start());
    const std::vector<Tensor> linked = record.link_all(std::move(backward), std::move(differentiable));
    for (size_t i = 0; i < linked.size(); ++i) outputs[gradient.outputs[part.outputs[i]]] = linked[i];
  }
  update_base_histories(*entry, arguments);
  mark_views(*entry, arguments, outputs);
  outputs.resize(own - entry->trace.written);
  return outputs;
}

const Trace& CapturedFunction::trace(const std::vector<Tensor>& inputs) {
  const ThreadOwner::Hold hold(state_->source->owner);
  Arguments arguments{inputs, {}};
  return state_->get(arguments)->trace;
}

CaptureStats CapturedFunction::stats() const {
  const ThreadOwner::Hold hold(state_->source->owner);
  CaptureStats stats = state_->stats;
  stats.entries = state_->entries.size();
  return stats;
}

program::MemoryReport CapturedFunction::memory(const std::vector<Tensor>& inputs) {
  const ThreadOwner::Hold hold(state_->source->owner);
  Arguments arguments{inputs, {}};
  const std::shared_ptr<Entry> entry = state_->get(arguments);
  entry->prepare_forward(arguments);
  return entry->forward->memory();
}

CapturedFunction capture(program::Function function, const std::vector<Tensor>& example_inputs,
                         CaptureOptions options) {
  CapturedFunction captured(std::move(function), std::move(options));
  captured.trace(example_inputs);
  return captured;
}

CapturedFunction load_function(const std::string& path, const Scope& scope) {
  return CapturedFunction(program::load(path, scope));
}

}  // namespace shard
