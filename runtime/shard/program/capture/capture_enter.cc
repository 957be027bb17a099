// Turns tensors from outside into inputs and parameters of a program, and restores them.
#include <fmt/format.h>

#include <algorithm>

#include "shard/autograd/leaf.h"
#include "shard/autograd/record.h"
#include "shard/dist/dist_tensor.h"
#include "shard/program/capture/program_tracer.h"
#include "shard/program/ir/rewrite.h"

namespace shard::program {

std::vector<Tensor> ProgramTracer::make_inputs(const std::vector<Tensor>& examples) {
  std::vector<Tensor> inputs;
  for (const Tensor& example : examples) {
    require_grad_.push_back(recorded_ && example.defined() && example.requires_grad());
    const size_t number = inputs.size();
    Tensor& input = inputs.emplace_back();
    ValueId id = 0;
    if (example.defined()) {
      const auto [first, is_new] = numbers_.emplace(example.impl().get(), number);
      input = is_new ? make_input(example, number) : inputs[first->second];
      id = value_in(input);
    }
    program_.inputs.push_back({fmt::format("input_{}", number), id});
  }
  // Views remain views of their base if that is an input too.
  for (size_t i = 0; i < examples.size(); ++i) {
    if (!inputs[i].defined() || adopted_of(*inputs[i].impl()) != nullptr || !autograd::shares_root(examples[i].get()))
      continue;
    const GradState& example = examples[i].get().grad;
    const auto root = numbers_.find(example.root.get());
    if (root == numbers_.end() || adopted_of(*inputs[root->second].impl()) != nullptr) continue;
    GradState& state = inputs[i].get().grad;
    state.root = inputs[root->second].impl();
    state.root_version = example.root_version;
    state.views = example.views;
  }
  return inputs;
}

void ProgramTracer::adopt(TensorImpl& tensor) {
  const DenseTensor& value = tensor.value;
  if (is_ours(value) || value.storage()->state() == Storage::State::shape_only) return;
  check_outside(tensor);
  if (value.storage()->state() == Storage::State::held && made_.contains(value.storage().get()))
    return adopt_made(tensor);
  tensor.retain();
  update_history(Tensor(Ref<TensorImpl>::adopt(&tensor)));
  auto [symbolic, id] = enter(tensor);
  Adopted& adopted = adopted_.emplace_back(tensor, std::move(symbolic), id);
  std::string name = scope_ == nullptr ? "" : scope_->name_of(adopted.handle());
  program_.parameters.push_back({name.empty() ? numbered_name("p") : name, id});
  parameters_.push_back(
      {.tensor = adopted.handle(), .leaf = {}, .requires_grad = recorded_ && tensor.grad.requires_grad});
}

void ProgramTracer::adopt_gradient(const Tensor& leaf) {
  adopt(*leaf.impl());
  const auto known = std::find_if(gradients_.begin(), gradients_.end(),
                                  [&](const Gradient& each) { return each.leaf.impl() == leaf.impl(); });
  if (known != gradients_.end()) return;
  const autograd::LeafExtra* const extra = autograd::extra_or_null(leaf);
  const Tensor gradient = extra == nullptr ? Tensor() : extra->gradient;
  gradients_.push_back({leaf, gradient, entry_of(leaf)});
  if (!gradient.defined() || entry_of(leaf) == 0) return;
  const size_t before = parameters_.size();
  adopt(*gradient.impl());
  if (parameters_.size() == before) {  // it was a parameter already; in each run the two have to be one tensor
    program_.parameters.push_back({"", entry_of(gradient)});
    parameters_.emplace_back();
  }
  const Input* const input = input_of(leaf.get());
  if (input == nullptr) parameters_.back() = {.tensor = {}, .leaf = leaf};
  else parameters_.back() = {.tensor = {}, .leaf = {}, .leaf_input = static_cast<int>(input->number)};
  program_.parameters.back().name = free_name(name_of(leaf) + ".grad");
}

bool ProgramTracer::was_computed(const TensorImpl& tensor) const {
  if (const Input* const input = input_of(tensor)) return !input->was_leaf;
  const Adopted* const adopted = adopted_of(tensor);
  return adopted != nullptr && !adopted->was_leaf();
}

TensorSet ProgramTracer::found_shared() const {
  TensorSet found;
  for (const Adopted& each : adopted_) {
    const TensorImpl* const tensor = each.handle().impl().get();
    const auto number = numbers_.find(tensor);
    if (number == numbers_.end() || shared_.contains(tensor)) continue;
    const bool touched = std::any_of(gradients_.begin(), gradients_.end(), [&](const Gradient& gradient) {
      const Input* const input = input_of(gradient.leaf.get());
      return gradient.leaf.impl().get() == tensor || (input != nullptr && input->number == number->second);
    });
    if (touched || (recorded_ && each.required_grad())) found.insert(tensor);
  }
  return found;
}

void ProgramTracer::end() {
  if (ended_) return;
  ended_ = true;
  this_thread.tracer = before_.tracer;
  this_thread.launcher = before_.launcher;
  for (Gradient& each : gradients_) {
    if (adopted_of(each.leaf.get()) == nullptr) continue;
    if (autograd::LeafExtra* const extra = autograd::extra_or_null(each.leaf)) extra->gradient = each.before;
  }
  for (Adopted& each : adopted_) each.restore();
  // An input that was written has a history that ends in its own step as a leaf: a reference cycle.
  for (const Input& each : inputs_) {
    if (each.tensor.defined()) each.tensor.get().grad.node = {};
  }
  for (Constant& each : constants_) each.restore();
  plain_.set_state(plain_state_);
  if (before_.rank == nullptr) return;
  before_.rank->generator.set_state(world_state_);
  before_.rank->comm_queue().set_calls_done(calls_done_);
}

Tensor ProgramTracer::make_input(const Tensor& example, size_t number) {
  TensorImpl& impl = example.get();
  if (shared_.contains(&impl)) {
    adopt(impl);
    return example;
  }
  check_outside(impl);
  update_history(example);
  auto [value, id] = enter(impl);
  const Tensor input(impl.alias());
  input.impl()->value = std::move(value);
  input.impl()->grad.requires_grad = example.requires_grad();
  inputs_.push_back({input, input.impl()->value, type_of(impl), number, example.is_leaf(),
                     impl.grad.root && !autograd::shares_root(impl), autograd::shares_root(impl),
                     example.requires_grad(), impl.value.storage().get()});
  if (const autograd::LeafExtra* const extra = autograd::extra_or_null(example)) {
    autograd::LeafExtra& own = autograd::extra_of(input);
    own.gradient = extra->gradient;
    own.layout = extra->layout;
    own.hooks = extra->hooks;
  }
  return input;
}

void ProgramTracer::adopt_made(TensorImpl& tensor) {
  if (buffers_.contains(tensor.value.storage().get())) {
    refuse("from_data", fmt::format("{} shares its buffer with another tensor that the function has created from data; "
                                    "create one as a view of the other",
                                    tensor.describe()));
  }
  parameters_.push_back({.tensor = Tensor(tensor.alias()), .leaf = {}, .constant = true});
  const ValueId id = enter(tensor).second;
  program_.parameters.push_back({numbered_name("constant_"), id});
  const Type type = type_of(tensor);
  Op op;
  op.kind = Kind::clone;
  op.inputs = {{id, 0}};
  op.attrs.emplace_back(type.device);
  DenseTensor copy = local_shard_of(type, meter);
  copy.set_symbol(symbol_of(add_single(std::move(op), type)));
  constants_.emplace_back(tensor, std::move(copy));
}

bool ProgramTracer::is_free(const std::string& name) const {
  const auto same = [&](const Named& other) { return other.name == name; };
  return !(scope_ != nullptr && scope_->has(name)) &&
         std::none_of(program_.parameters.begin(), program_.parameters.end(), same);
}

std::string ProgramTracer::numbered_name(std::string_view stem) const {
  for (size_t number = program_.parameters.size();; ++number) {
    if (std::string name = fmt::format("{}{}", stem, number); is_free(name)) return name;
  }
}

std::string ProgramTracer::free_name(std::string name) const {
  while (!is_free(name)) name += '_';
  return name;
}

bool ProgramTracer::is_ours(const DenseTensor& value) const {
  if ((value.symbol() & ~kValueBits) != tag_) return false;
  const Storage& storage = *value.storage();
  return storage.state() == Storage::State::absent || storage.state() == Storage::State::shape_only ||
         storage.meter() == &meter;
}

void ProgramTracer::check_outside(const TensorImpl& tensor) {
  Storage& storage = *tensor.value.storage();
  if (tensor.value.symbol() != 0) {
    fail(ErrorCode::capture,
         "{} was made while another program was captured, and has no value; use what that program returns when it runs",
         tensor.describe());
  }
  if (!storage.stale()) storage.check_read();
}

void ProgramTracer::update_history(const Tensor& tensor) const {
  const autograd::NoBoundary::Suspended outside(no_boundary_);
  tensor.requires_grad();
}

void ProgramTracer::link_resharded_view(const Buffer& view) const {
  const Detachment& from = *view.real->detachment();
  const Storage* const known =
      nearest_source(*view.real, [&](const Storage* source) { return buffers_.contains(source); });
  Ref<Storage> source = known == nullptr ? Storage::absent() : buffers_.at(known).symbolic;
  uint64_t version = known == nullptr ? 0 : known->version();
  if (view_policy() == ViewPolicy::strict && view.real->stale()) {
    source = Storage::absent();
    source->bump(writer_of(*view.real));
    version = 0;
  }
  view.symbolic->detach({source, version, from.op, from.argument, from.from, from.to, {}, {}});
}

const char* ProgramTracer::writer_of(const Storage& view) {
  const Detachment* from = view.detachment();
  while (from->source->version() == from->source_version) from = from->source->detachment();
  return from->source->last_write() == nullptr ? "an op" : from->source->last_write()->op;
}

void ProgramTracer::link_resharded_views(const Buffer& entered) const {
  if (entered.resharded) link_resharded_view(entered);
  for (const auto& [real, view] : buffers_) {
    // The function has written it, or has read it while stale under ViewPolicy::temporary.
    const bool separated = view.symbolic->detachment() == nullptr;
    if (view.resharded && !separated && &view != &entered) link_resharded_view(view);
  }
}

std::pair<DenseTensor, ValueId> ProgramTracer::enter(const TensorImpl& tensor) {
  const Ref<Storage>& real = tensor.value.storage();
  Buffer& buffer = buffers_[real.get()];
  const Type type = type_of(tensor);
  ValueId id = 0;
  if (!buffer.real) {
    buffer.real = real;
    buffer.symbolic = real->state() == Storage::State::absent
                          ? Storage::absent()
                          : Storage::unallocated(real->device(), real->bytes(), meter);
    buffer.symbolic->set_version(real->version());
    // Under ViewPolicy::temporary a stale view is separated from its source when the program reads
    // it.
    buffer.resharded = real->detachment() != nullptr && !(view_policy() == ViewPolicy::temporary && real->stale());
    link_resharded_views(buffer);
    id = buffer.first = program_.add_value(type);
  } else {
    id = program_.add_value(type, buffer.first);
  }
  ++buffer.tensors;
  DenseTensor value(buffer.symbolic, tensor.value.meta(), tensor.value.offset());
  value.set_symbol(symbol_of(id));
  return {std::move(value), id};
}

std::string ProgramTracer::name_of(const Tensor& tensor) const {
  const ValueId id = value_in(tensor);
  for (const std::vector<Named>* list : {&program_.parameters, &program_.inputs}) {
    for (const Named& each : *list) {
      if (each.value != 0 && program_.value(each.value).root == program_.value(id).root && each.value <= id)
        return each.name;
    }
  }
  return fmt::format("%{}", id);
}

ValueId ProgramTracer::entry_of(const Tensor& tensor) const {
  if (const Adopted* const adopted = adopted_of(tensor.get())) return adopted->value();
  const Input* const input = input_of(tensor.get());
  return input == nullptr ? 0 : input->symbolic.symbol() & kValueBits;
}

const Adopted* ProgramTracer::adopted_of(const TensorImpl& tensor) const {
  const auto found = std::find_if(adopted_.begin(), adopted_.end(),
                                  [&](const Adopted& each) { return each.handle().impl().get() == &tensor; });
  return found == adopted_.end() ? nullptr : &*found;
}

const ProgramTracer::Input* ProgramTracer::input_of(const TensorImpl& tensor) const {
  const auto found = std::find_if(inputs_.begin(), inputs_.end(),
                                  [&](const Input& each) { return each.tensor.impl().get() == &tensor; });
  return found == inputs_.end() ? nullptr : &*found;
}

bool ProgramTracer::is_resharded_entry(const Storage& symbolic) const {
  return std::any_of(buffers_.begin(), buffers_.end(), [&](const auto& each) {
    return each.second.resharded && each.second.symbolic.get() == &symbolic;
  });
}

}  // namespace shard::program
