// Finishes a capture: the outputs of the function, their gradient, and what the function must not
// change.
#include <fmt/format.h>

#include <algorithm>

#include "shard/autograd/autograd.h"
#include "shard/autograd/leaf.h"
#include "shard/autograd/rerun.h"
#include "shard/dist/dist_tensor.h"
#include "shard/program/capture/groups.h"
#include "shard/program/capture/program_tracer.h"
#include "shard/program/capture/steps.h"
#include "shard/program/ir/alias.h"
#include "shard/program/ir/rewrite.h"

namespace shard::program {

Trace ProgramTracer::finish(std::vector<Tensor> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tracer::adopt(outputs[i]);
    program_.outputs.push_back({fmt::format("output_{}", i), outputs[i].defined() ? value_for_caller(outputs[i]) : 0});
  }
  std::vector<DetachedOutput> detached = detached_outputs(outputs);
  std::vector<ViewOutput> views = view_outputs(outputs);
  const size_t written = add_written(outputs);
  finish_gradients();
  std::optional<TracedGradient> gradient = differentiate(outputs);
  check_adopted();
  finish_draws();
  Trace result{std::move(program_), std::move(parameters_), std::move(require_grad_), std::move(leaves_), written,
               std::move(detached), std::move(views),       std::move(gradient)};
  outputs.clear();
  end();
  return result;
}

void ProgramTracer::check_constants() {
  gradients_.clear();
  inputs_.clear();
  for (const Constant& each : constants_) {
    if (!each.escapes()) continue;
    fail(ErrorCode::capture,
         "the captured function stores a tensor that it creates from data and then changes ({}), but each run creates "
         "its own; create it outside of the function, so that all runs share it",
         each.handle().get().describe());
  }
}

ValueId ProgramTracer::value_for_caller(const Tensor& tensor) {
  const ValueId id = value_in(tensor);
  if (id == 0 || entry_of(tensor) != 0 || program_.value(handle_of(program_, id)).op >= 0) return id;
  const std::optional<Type> type = program_.value(id).type;
  return add(make_alias(id, *type), {&type, 1}, {&id, 1}, {false})[0];
}

std::vector<DetachedOutput> ProgramTracer::detached_outputs(const std::vector<Tensor>& outputs) {
  std::unordered_map<const Storage*, ValueId> seen;
  for (const auto& [real, buffer] : buffers_) seen[buffer.symbolic.get()] = buffer.first;
  for (const Tensor& output : outputs) {
    if (output.defined()) seen.emplace(output.impl()->value.storage().get(), value_in(output));
  }
  std::vector<DetachedOutput> detached;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    const Storage& storage = *outputs[i].impl()->value.storage();
    const Detachment* const from = storage.detachment();
    if (from == nullptr || is_resharded_entry(storage)) continue;
    // A view of a view is a stale copy of the first source that the caller sees.
    const Detachment* link = from;
    while (link != nullptr && !seen.contains(link->source.get())) link = link->source->detachment();
    if (link == nullptr && !storage.stale()) continue;
    if (from->refresh && before_.rank->policies.view == ViewPolicy::sync) {
      fail(ErrorCode::capture,
           "the captured function returns a view by [{}] of '{}', which was resharded, and ViewPolicy::sync would keep "
           "the two in sync after each run; return a copy (assign(x)), or reshard '{}' to {} before",
           from->op, from->argument, from->argument, from->to);
    }
    detached.push_back({i, link == nullptr ? value_in(outputs[i]) : seen.at(link->source.get()), storage.stale(),
                        from->op, from->argument, from->from, from->to});
  }
  return detached;
}

size_t ProgramTracer::add_written(std::vector<Tensor>& outputs) {
  const size_t returned = outputs.size();
  const auto add = [&](const Input& input) {
    const Tensor& tensor = input.tensor;
    tensor.requires_grad();  // gives a view of a written tensor the history of that write
    if (!tensor.get().grad.node) return;
    const char* const fault =
        input.resharded_view ? "is a view of a resharded copy"
        : !has_all_tensors_on(*input.real)
            ? "shares its buffer with a tensor that is not an input, or whose base is not an input"
        : !is_whole(tensor) ? "the function has already run backward through"
                            : nullptr;
    if (fault != nullptr) {
      fail(ErrorCode::capture,
           "the captured function writes a value that requires a gradient into a tensor from outside ({}) that {}; "
           "write a copy (assign(x)) or detach() of it, or write under NoGrad",
           tensor.get().describe(), fault);
    }
    const auto same = [&](const Tensor& output) { return output.impl() == tensor.impl(); };
    if (std::any_of(outputs.begin(), outputs.end(), same)) return;
    program_.outputs.push_back({"written_" + name_of(tensor), value_in(tensor)});
    outputs.push_back(tensor);
  };
  for (const Input& each : inputs_) add(each);
  for (const Adopted& each : adopted_) {
    if (!each.handle().get().grad.node) continue;
    // A cycle: its history would hold the program, and the program would hold the tensor.
    fail(ErrorCode::capture,
         "the captured function writes a value that requires a gradient into a tensor from outside that is not one of "
         "its inputs ({}); pass it as an input, write a copy (assign(x)) or detach() of it, or write under NoGrad",
         each.handle().get().describe());
  }
  return outputs.size() - returned;
}

bool ProgramTracer::has_all_tensors_on(const Storage& real) const {
  size_t inputs = 0, outside = 0;
  for (const Input& each : inputs_) {
    if (each.real != &real) continue;
    ++inputs;
    outside += each.is_view && !each.tensor.get().grad.root;
  }
  return inputs == buffers_.at(&real).tensors && (inputs == 1 || outside == 0);
}

std::vector<Tensor> ProgramTracer::as_entered(std::vector<Tensor> arguments) {
  for (Tensor& each : arguments) {
    if (!each.get().grad.node) continue;
    autograd::OwnedEdge start = autograd::edge_of_leaf(each);
    each = Tensor(each.impl()->alias());
    GradState& state = each.get().grad;
    state.requires_grad = true;
    state.node = std::move(start.node);
    state.output = start.output;
  }
  return arguments;
}

std::vector<ViewOutput> ProgramTracer::view_outputs(const std::vector<Tensor>& outputs) const {
  std::vector<ViewOutput> views;
  std::unordered_map<const TensorImpl*, size_t> first;  // for each base, the output that represents it
  for (size_t i = outputs.size(); i-- > 0;) {
    if (outputs[i].defined()) first[outputs[i].impl().get()] = i;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    const TensorImpl& view = outputs[i].get();
    const Ref<TensorImpl>& root = view.grad.root;
    if (input_of(view) != nullptr) continue;  // it is a view already
    if (!root || !(root->value.storage() == view.value.storage())) continue;
    const ValueId source = entry_of(Tensor(root));
    const size_t other = source != 0 ? 0 : first.emplace(root.get(), i).first->second;
    if (source != 0 || other != i) views.push_back({i, source, other});
  }
  return views;
}

std::optional<TracedGradient> ProgramTracer::differentiate(const std::vector<Tensor>& outputs) {
  TracedGradient gradient;
  std::vector<Tensor> from, leaves;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || outputs[i].is_leaf() || !is_whole(outputs[i])) continue;
    gradient.outputs.push_back(i);
    from.push_back(outputs[i]);
  }
  if (from.empty()) return std::nullopt;
  for (const Input& input : inputs_) {
    if (input.required_grad) leaves.push_back(input.tensor);
  }
  for (const Adopted& each : adopted_) {
    if (each.required_grad()) leaves.push_back(each.handle());
  }
  add_wanted_leaves(gradient, leaves);
  if (from.size() > 1) gradient.reaches = reached(from, as_entered(leaves));
  gradient.forward_ops = program_.ops.size();
  gradient.function_inputs = program_.inputs.size();
  gradient.function_outputs = program_.outputs.size();
  gradient.plain_draws = plain_.state().offset - plain_state_.offset;
  if (before_.rank != nullptr) gradient.world_draws = before_.rank->generator.state().offset - world_state_.offset;
  const Program forward = program_;
  const size_t parameters = parameters_.size();
  const autograd::RandomState drawn = autograd::RandomState::now();
  try {
    add_gradients(gradient, from, leaves);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::autograd) throw;
    program_ = forward;
    parameters_.resize(parameters);
    std::erase_if(buffers_, [&](const auto& each) { return each.second.first >= program_.value_count(); });
    drawn.restore();
    add_wanted_leaves(gradient, leaves);
    gradient.reaches.clear();
    gradient.error = error.what();
  }
  return gradient;
}

void ProgramTracer::add_wanted_leaves(TracedGradient& gradient, const std::vector<Tensor>& leaves) const {
  gradient.wanted.clear();
  for (const Tensor& each : leaves) gradient.wanted.push_back(entry_of(each));
  gradient.output_groups.assign(gradient.outputs.size(), 0);
  gradient.wanted_groups.assign(gradient.wanted.size(), 0);
}

void ProgramTracer::add_gradients(TracedGradient& gradient, const std::vector<Tensor>& from,
                                  const std::vector<Tensor>& leaves) {
  std::vector<Tensor> given;
  for (size_t i = 0; i < from.size(); ++i) {
    Type type = type_of(from[i].get());
    if (type.spec != nullptr) type.spec = autograd::gradient_layout(type.spec);
    given.push_back(new_tensor(type));
    program_.inputs.push_back(
        {fmt::format("grad_{}", program_.outputs[gradient.outputs[i]].name), value_in(given.back())});
  }
  gradient.output_groups = groups_of(from);
  for (size_t group = 0; group < group_count(gradient); ++group) {
    std::vector<Tensor> outputs, of_outputs;
    for (size_t i = 0; i < from.size(); ++i) {
      if (gradient.output_groups[i] != group) continue;
      outputs.push_back(from[i]);
      of_outputs.push_back(given[i]);
    }
    const std::vector<Tensor> found =
        grad(outputs, as_entered(leaves), of_outputs, {.retain_graph = true}, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const std::string name = "grad_" + name_of(leaves[i]);
      if (group == 0) {
        program_.outputs.push_back({name, found[i].defined() ? value_in(found[i]) : 0});
      } else if (found[i].defined()) {
        program_.outputs.push_back({fmt::format("{}_{}", name, group + 1), value_in(found[i])});
        gradient.wanted.push_back(entry_of(leaves[i]));
        gradient.wanted_groups.push_back(group);
      }
    }
  }
}

Tensor ProgramTracer::new_tensor(const Type& type) {
  DenseTensor shard = local_shard_of(type, meter);
  shard.set_symbol(symbol_of(program_.add_value(type)));
  return type.spec == nullptr ? Tensor(std::move(shard))
                              : make_dist(*before_.rank, type.meta, type.spec, std::move(shard));
}

void ProgramTracer::finish_gradients() {
  for (Gradient& each : gradients_) {
    const autograd::LeafExtra* const extra = autograd::extra_or_null(each.leaf);
    const Tensor now = extra == nullptr ? Tensor() : extra->gradient;
    const Input* const input = input_of(each.leaf.get());
    const Adopted* const adopted = adopted_of(each.leaf.get());
    if (input == nullptr && adopted == nullptr) continue;  // a leaf that the function itself created
    const bool changed = now.impl() != each.before.impl();
    if (changed && !(adopted != nullptr ? adopted->was_leaf() : input->was_leaf)) {
      fail(ErrorCode::capture,
           "[backward] cannot be captured: it continues into the computation of {}, before the captured function. Pass "
           "detach() of it, or call backward outside",
           each.leaf.get().describe());
    }
    leaves_.push_back({input != nullptr ? Tensor() : each.leaf, input != nullptr ? input->number : 0, each.value,
                       each.before.defined()});
    if (!changed) continue;
    Tracer::adopt(now);
    program_.gradients.push_back({each.value, now.defined() ? value_for_caller(now) : 0});
  }
}

void ProgramTracer::check_adopted() const {
  for (const Input& each : inputs_) {
    const TensorImpl& impl = *each.tensor.impl();
    check_kept(impl, each.type, impl.value.storage() == each.symbolic.storage() && type_of(impl) == each.type,
               each.required_grad);
  }
  for (const Adopted& each : adopted_)
    check_kept(*each.handle().impl(), each.type(), each.same_place(), each.required_grad());
  for (const auto& [real, buffer] : buffers_) {
    const Detachment* const detachment = buffer.symbolic->detachment();
    if (detachment != nullptr && !buffer.resharded) {
      fail(ErrorCode::capture,
           "[{}] in the captured function replaces a buffer that a tensor from outside ({}) shares, so the two would "
           "become independent in each run; pass it a copy (assign(x)), or call the out-of-place op",
           detachment->op, to_string(program_.value(buffer.first).type));
    }
  }
}

void ProgramTracer::check_kept(const TensorImpl& tensor, const Type& type, bool same_place, bool required_grad) {
  if (!same_place) {
    fail(ErrorCode::capture,
         "the captured function changes the shape, dtype, layout or buffer of a tensor from outside ({}), which each "
         "run would repeat; write only its elements, or return the new tensor",
         to_string(type));
  }
  if (tensor.grad.requires_grad != required_grad && !tensor.grad.node) {
    fail(ErrorCode::capture,
         "the captured function changes whether a tensor from outside ({}) requires a gradient, which each run would "
         "repeat; call set_requires_grad outside, or on detach() of it, which is a tensor of the function",
         to_string(type));
  }
}

void ProgramTracer::finish_draws() {
  const RandomKey plain = plain_.state();
  program_.plain_draws = plain.offset - plain_state_.offset;
  bool seeded = plain.seed != plain_state_.seed;
  if (before_.rank != nullptr) {
    const RandomKey world = before_.rank->generator.state();
    program_.world_draws = world.offset - world_state_.offset;
    seeded = seeded || world.seed != world_state_.seed;
  }
  if (seeded)
    fail(ErrorCode::capture,
         "the captured function sets the seed of a generator, which each run would repeat; set it outside");
}

}  // namespace shard::program
