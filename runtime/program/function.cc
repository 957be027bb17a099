#include "program/function.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <set>

#include "autograd/leaf.h"
#include "autograd/record.h"
#include "autograd/rerun.h"
#include "call/plan_cache.h"
#include "core/error.h"
#include "core/writing.h"
#include "dist/dist_tensor.h"
#include "program/json.h"
#include "program/recompute.h"
#include "program/split.h"
#include "reshard/execute.h"

namespace shard {
namespace {

using autograd::OwnedEdge;
using autograd::Pass;
using call::KeyWords;
using program::Arguments;
using program::Executor;
using program::Named;
using program::Program;
using program::Split;
using program::Trace;
using program::ValueId;

constexpr OpDef kCaptured = {.name = "captured", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

const DistSpec* spec_or_null(const Tensor& tensor) { return tensor.is_dist() ? dist_impl(tensor).spec : nullptr; }

/// Compares a key with a known one while it is made, so that a run needs no memory for it.
class KeyMatch {
 public:
  explicit KeyMatch(const KeyWords& known) : known_(known) {}
  void push_back(uint64_t word) { equal_ = equal_ && at_ < known_.size() && known_[at_++] == word; }
  bool matches() const { return equal_ && at_ == known_.size(); }

 private:
  const KeyWords& known_;
  size_t at_ = 0;
  bool equal_ = true;
};

template <class Key>
void add_type(Key& key, const Tensor& tensor) {
  if (!tensor.defined()) {
    key.push_back(0);
    return;
  }
  const Meta& meta = tensor.meta();
  const Device device = tensor.device();
  key.push_back(1 | static_cast<uint64_t>(tensor.requires_grad()) << 1 | static_cast<uint64_t>(meta.dtype) << 8 | static_cast<uint64_t>(meta.dims.rank()) << 16 |
                static_cast<uint64_t>(device.backend) << 24 | static_cast<uint64_t>(device.index) << 32);
  key.push_back(reinterpret_cast<uintptr_t>(spec_or_null(tensor)));
  for (const int64_t size : meta.dims) key.push_back(static_cast<uint64_t>(size));
  if (!tensor.requires_grad()) return;
  // What backward inside of the function does at a leaf.
  key.push_back(static_cast<uint64_t>(tensor.is_leaf()));
  if (const autograd::LeafExtra* const extra = autograd::extra_or_null(tensor)) {
    key.push_back(static_cast<uint64_t>(extra->layout));
    for (const auto& [id, hook] : extra->hooks) key.push_back(id);
  }
}

template <class Key>
void add_types(Key& key, std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) add_type(key, tensor);
}

/// What is known of a call before any program is.
KeyWords key_of(const std::vector<Tensor>& inputs) {
  KeyWords key;
  Rank* const rank = current_rank_or_null();
  key.push_back(reinterpret_cast<uintptr_t>(rank));
  if (rank != nullptr) {
    const Policies& p = rank->policies;
    key.push_back(static_cast<uint64_t>(p.view) | static_cast<uint64_t>(p.inplace) << 8 | static_cast<uint64_t>(p.comm) << 16 | static_cast<uint64_t>(p.fallback) << 24 |
                  static_cast<uint64_t>(p.promotion) << 32 | static_cast<uint64_t>(p.save) << 40);
  }
  key.push_back(static_cast<uint64_t>(grad_enabled()) | inputs.size() << 1);
  add_types(key, inputs);
  return key;
}

/// Which of the tensors share which bytes: for each the first one on its buffer, how far it lies from that, and the first that is the same tensor.
template <class Key>
void add_sharing(Key& key, const Arguments& arguments) {
  struct Place {
    const Storage* storage;
    const TensorImpl* tensor;
    size_t number, offset, first, distance, same;
  };
  std::vector<Place> places;
  places.reserve(arguments.inputs.size() + arguments.parameters.size());
  for (const std::vector<Tensor>* tensors : {&arguments.inputs, &arguments.parameters}) {
    for (const Tensor& tensor : *tensors) {
      const size_t number = places.size();
      if (!tensor.defined()) places.push_back({nullptr, nullptr, number, 0, ~size_t{0}, 0, number});
      else places.push_back({tensor.get().value.storage().get(), tensor.impl().get(), number, tensor.get().value.offset(), number, 0, number});
    }
  }
  // Addresses say which are equal, and numbers alone go into the key.
  const auto before = [](const Place& a, const Place& b) {
    if (a.storage != b.storage) return std::less<>()(a.storage, b.storage);
    return a.tensor != b.tensor ? std::less<>()(a.tensor, b.tensor) : a.number < b.number;
  };
  std::sort(places.begin(), places.end(), before);
  for (auto group = places.begin(); group != places.end();) {
    const auto end = std::find_if(group, places.end(), [&](const Place& each) { return each.storage != group->storage; });
    const Place first = *std::min_element(group, end, [](const Place& a, const Place& b) { return a.number < b.number; });
    const Place* same = &*group;
    for (; group != end; ++group) {
      if (group->storage == nullptr) continue;
      if (group->tensor != same->tensor) same = &*group;
      group->first = first.number;
      group->distance = group->offset - first.offset;
      group->same = same->number;
    }
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.number < b.number; });
  for (const Place& place : places) {
    key.push_back(place.first);
    key.push_back(place.distance);
    key.push_back(place.same);
  }
}

/// Which of the tensors are views that had to move, and of which other ones, so that those must not be written before they are read.
template <class Key>
void add_moved(Key& key, const Arguments& arguments) {
  const size_t inputs = arguments.inputs.size();
  const auto storage_of = [&](size_t i) -> const Storage* {
    const Tensor& tensor = i < inputs ? arguments.inputs[i] : arguments.parameters[i - inputs];
    return tensor.defined() ? tensor.get().value.storage().get() : nullptr;
  };
  const size_t count = inputs + arguments.parameters.size();
  for (size_t i = 0; i < count; ++i) {
    const Storage* const storage = storage_of(i);
    const Detachment* const moved = storage == nullptr ? nullptr : storage->detachment();
    if (moved == nullptr) continue;
    size_t source = 0;
    while (source < count && storage_of(source) != moved->source.get()) ++source;
    key.push_back(i);
    key.push_back(source);
  }
}

/// Which thread is in a call of a captured function.
class Occupant {
 public:
  /// For as long as this lives. Calls of one thread may be in each other. Throws where another thread is in a call.
  class Stay {
   public:
    explicit Stay(Occupant& occupant) : occupant_(occupant) {
      const ThreadState* nobody = nullptr;
      entered_ = occupant.thread_.compare_exchange_strong(nobody, &this_thread, std::memory_order_acquire);
      if (entered_ || nobody == &this_thread) return;
      fail(ErrorCode::capture, "[captured] another thread is in a call or a backward pass of this captured function, whose programs keep buffers from run to run. Capture one function "
           "per thread, or let the threads take turns");
    }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
    ~Stay() {
      if (entered_) occupant_.thread_.store(nullptr, std::memory_order_release);
    }

   private:
    Occupant& occupant_;
    bool entered_;
  };

 private:
  std::atomic<const ThreadState*> thread_{nullptr};
};

/// A program with what it needs to run.
struct Entry {
  program::Function function;
  KeyWords key;
  KeyWords sharing;     // of inputs and parameters
  KeyWords parameters;  // their types
  Trace trace;
  std::optional<Split> split;  // where the function has a gradient
  Program whole;               // what runs where it has none
  program::ExecutorOptions options;
  std::shared_ptr<Occupant> occupant;  // of the function
  std::unique_ptr<Executor> forward;
  std::vector<program::BackwardPart> parts;  // of the gradient; without a program where that is an error
  std::vector<std::unique_ptr<Executor>> backward;  // of each part
  std::vector<size_t> argument_of;  // by value of trace.program: 1 + its number among the inputs of the function and then the parameters; 0: it is none
  std::vector<size_t> leaf_of;      // by gradient that a run leaves: its number in trace.leaves

  const Program& program() const { return split ? split->forward : whole; }
  /// Once the trace is complete.
  void index() {
    const Program& joint = trace.program;
    argument_of.assign(joint.value_count(), 0);
    const size_t inputs = trace.require_grad.size();
    for (size_t i = 0; i < inputs; ++i) argument_of[joint.inputs[i].value] = 1 + i;
    for (size_t i = 0; i < joint.parameters.size(); ++i) argument_of[joint.parameters[i].value] = 1 + inputs + i;
    argument_of[0] = 0;
    std::vector<size_t> leaves(joint.value_count(), 0);
    for (size_t i = 0; i < trace.leaves.size(); ++i) leaves[trace.leaves[i].value] = i;
    for (const program::GradientEffect& effect : joint.gradients) leaf_of.push_back(leaves[effect.leaf]);
  }
  /// The tensor that an input or parameter of the captured program is; undefined for other values.
  Tensor argument(ValueId id, const Arguments& arguments) const {
    const size_t number = argument_of[id];
    if (number == 0) return {};
    const size_t inputs = arguments.inputs.size();
    return number <= inputs ? arguments.inputs[number - 1] : arguments.parameters[number - 1 - inputs];
  }
};

/// The tensors that an entry's parameters are now. Undefined where a leaf has no gradient.
std::vector<Tensor> parameters_of(const Entry& entry, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> parameters;
  parameters.reserve(entry.trace.parameters.size());
  for (const program::Parameter& each : entry.trace.parameters) {
    Tensor leaf = each.leaf;
    if (const auto input = static_cast<size_t>(each.leaf_input); each.leaf_input >= 0) leaf = input < inputs.size() ? inputs[input] : Tensor();
    parameters.push_back(leaf.defined() ? leaf.grad() : each.tensor);
  }
  return parameters;
}

const Tensor& tensor_of(const program::Leaf& leaf, const std::vector<Tensor>& inputs) { return leaf.tensor.defined() ? leaf.tensor : inputs[leaf.input]; }

/// Whether an entry, whose key is that of the call, fits what it does not tell.
bool fits(const Entry& entry, const Arguments& arguments) {
  for (const program::Leaf& leaf : entry.trace.leaves) {
    if (tensor_of(leaf, arguments.inputs).grad().defined() != leaf.had_gradient) return false;
  }
  KeyMatch parameters(entry.parameters), sharing(entry.sharing);
  add_types(parameters, arguments.parameters);
  if (!parameters.matches()) return false;
  add_sharing(sharing, arguments);
  add_moved(sharing, arguments);
  return sharing.matches();
}

/// What the step of a call keeps for a gradient that is recorded itself: the function is called again then, because its program has no more than a
/// gradient.
class Again {
 public:
  /// Before the program runs.
  Again(const Entry& entry, const program::BackwardPart& part, const Arguments& arguments)
      : entry_(entry), rerun_([&entry, &part](const std::vector<Tensor>& inputs) { return outputs_of(entry, part, inputs); }, arguments.inputs) {
    versions_.reserve(arguments.parameters.size());
    for (const Tensor& parameter : arguments.parameters) versions_.push_back(parameter.defined() ? parameter.version() : 0);
  }

  void operator()(Pass& pass) const {
    if (!entry_.function) {
      fail(ErrorCode::autograd, "[captured] create_graph calls the captured function again, and a loaded program has none; leave create_graph out, or capture the function itself");
    }
    if (!entry_.trace.program.gradients.empty()) {
      fail(ErrorCode::autograd, "[captured] create_graph calls the captured function again, which would change the gradients of leaves again; leave create_graph out, or call backward "
           "outside of the function");
    }
    const std::vector<program::Parameter>& parameters = entry_.trace.parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string& name = entry_.trace.program.parameters[i].name;
      if (parameters[i].leaf_input >= 0) {
        fail(ErrorCode::autograd, "[captured] create_graph calls the captured function again, which reads the gradient of an input ('{}'), and that may be another one by now; leave "
             "create_graph out, or give the function a copy of the gradient (assign(x))", name);
      }
      const Tensor now = parameters[i].leaf.defined() ? parameters[i].leaf.grad() : parameters[i].tensor;
      if (!now.defined() || now.version() == versions_[i]) continue;
      fail(ErrorCode::autograd, "[captured] create_graph calls the captured function again, but '{}' ({}) has been written since the call: it was at version {} and is at {}, written "
           "last by {}. Call backward before that write, or give the function a copy (assign(x))", name, now.get().describe(), versions_[i], now.version(),
           LastWrite::text(now.get().value.storage()->last_write()));
    }
    rerun_(pass);
  }

 private:
  static std::vector<Tensor> outputs_of(const Entry& entry, const program::BackwardPart& part, const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> outputs = entry.function(inputs);
    std::vector<Tensor> found;
    for (const size_t number : part.outputs) {
      const size_t i = entry.trace.gradient->outputs[number];
      if (i < outputs.size() && outputs[i].defined()) found.push_back(outputs[i]);
    }
    return found;
  }

  const Entry& entry_;
  autograd::Rerun rerun_;
  std::vector<uint64_t> versions_;
};

/// The step of the outputs of a call that share a backward pass.
class Backward {
 public:
  /// `values`: what forward has given beside its outputs.
  Backward(std::shared_ptr<Entry> entry, size_t part, Again again, const Arguments& arguments, std::span<const Tensor> values, program::RandomStart random)
      : entry_(std::move(entry)), part_(part), again_(std::move(again)), random_(random) {
    if (!entry_->split) return;
    const Split& split = *entry_->split;
    for (const size_t i : part_of_entry().inputs) {
      if (i >= split.middles.size()) break;  // then come the gradients of outputs
      const program::Middle& middle = split.middles[i];
      values_.push_back(middle.output < 0 ? Tensor() : values[static_cast<size_t>(middle.output) - split.outputs]);
      versions_.push_back(values_.back().defined() ? values_.back().version() : 0);
    }
    for (const size_t i : part_of_entry().parameters) {
      sources_.push_back(entry_->argument(split.sources[i], arguments).detach());
      versions_.push_back(sources_.back().version());
    }
  }

  void operator()(Pass& pass) const {
    if (const std::string& error = entry_->trace.gradient->error; !error.empty()) fail(ErrorCode::autograd, "[captured] {}", error);
    if (grad_enabled()) return again_(pass);
    const Occupant::Stay stay(*entry_->occupant);
    const program::BackwardPart& part = part_of_entry();
    check_versions();
    Arguments arguments{values_, sources_};
    for (Tensor& source : arguments.parameters) source = snapshot(source);
    const std::vector<Tensor> given = pass.grads(0);
    for (size_t i = 0; i < part.outputs.size(); ++i) {
      const size_t number = entry_->split->middles.size() + part.outputs[i];  // among the inputs of the whole backward program
      if (std::find(part.inputs.begin(), part.inputs.end(), number) == part.inputs.end()) continue;  // no gradient depends on it
      const DistSpec* const spec = entry_->split->backward.value(entry_->split->backward.inputs[number].value).type.spec;
      arguments.inputs.push_back(spec == nullptr ? given[i] : reshard(given[i], spec));
    }
    std::unique_ptr<Executor>& executor = entry_->backward[part_];
    if (!executor) {
      program::ExecutorOptions options = entry_->options;
      options.keep_arguments = false;  // what forward has kept for this backward is freed
      executor = std::make_unique<Executor>(part.program, arguments, options);
    }
    std::vector<Tensor> gradients = executor->run(arguments, random_);
    drop_unreached(gradients, pass.grads_or_none(0));
    pass.give<0>(std::move(gradients));
  }

 private:
  /// There is no gradient of what none of the outputs that this pass comes from was computed from: the program has zeros there.
  void drop_unreached(std::vector<Tensor>& gradients, const std::vector<Tensor>& given) const {
    const program::TracedGradient& gradient = *entry_->trace.gradient;
    if (gradient.reaches.empty()) return;
    std::set<std::pair<size_t, ValueId>> reached;  // by group: where several run as one pass, each has gradients of its own
    for (size_t i = 0; i < given.size(); ++i) {
      const size_t output = part_of_entry().outputs[i];
      if (!given[i].defined()) continue;
      for (const size_t number : gradient.reaches[output]) reached.emplace(gradient.output_groups[output], gradient.wanted[number]);
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      const size_t wanted = part_of_entry().wanted[i];
      if (!reached.contains({gradient.wanted_groups[wanted], gradient.wanted[wanted]})) gradients[i] = {};
    }
  }

  /// A view that had to move holds what forward has read, also when its source was written since.
  static Tensor snapshot(const Tensor& source) {
    if (!source.get().value.storage()->stale()) return source;
    Tensor copy(source.impl()->alias());
    DenseTensor& value = copy.get().value;
    value = value.storage()->state() == Storage::State::absent ? absent_value(source.meta()) : clone(value);
    return copy;
  }

  void check_versions() const {
    for (size_t i = 0; i < versions_.size(); ++i) {
      const bool source = i >= values_.size();
      const Tensor& tensor = source ? sources_[i - values_.size()] : values_[i];
      if (!tensor.defined() || tensor.version() == versions_[i]) continue;
      const std::string name = source ? fmt::format("'{}'", part_of_entry().program.parameters[i - values_.size()].name) : "an output";
      const LastWrite* const write = tensor.get().value.storage()->last_write();
      fail(ErrorCode::autograd,
           "[captured] backward reads {} ({}) as the captured function had it: version {}, but it is at version {}, written last by {}. Call backward before that write, or give the "
           "function a copy (assign(x))", name, tensor.get().describe(), versions_[i], tensor.version(), LastWrite::text(write));
    }
  }

  const program::BackwardPart& part_of_entry() const { return entry_->parts[part_]; }

  std::shared_ptr<Entry> entry_;
  size_t part_;
  Again again_;
  program::RandomStart random_;
  std::vector<Tensor> values_, sources_;
  std::vector<uint64_t> versions_;
};

std::string text_of(const program::Type& type, bool requires_grad) {
  const std::string mesh = type.spec == nullptr ? "" : " on " + type.spec->mesh()->describe();
  return fmt::format("{}{}{}", to_string(type), mesh, requires_grad ? ", requires a gradient" : "");
}

/// Collects how arguments differ from what a loaded program takes.
class FitCheck {
 public:
  FitCheck(const Trace& trace, const Arguments& arguments) : trace_(trace), program_(trace.program), arguments_(arguments) {}

  void run() {
    const std::span<const Named> inputs = std::span(program_.inputs).first(trace_.require_grad.size());
    if (arguments_.inputs.size() != inputs.size()) problem(fmt::format("expected {} inputs, but {} are given", inputs.size(), arguments_.inputs.size()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor given = i < arguments_.inputs.size() ? arguments_.inputs[i] : Tensor();
      check("input", inputs[i], given, trace_.require_grad[i]);
    }
    for (size_t i = 0; i < program_.parameters.size(); ++i) check("parameter", program_.parameters[i], arguments_.parameters[i], trace_.parameters[i].requires_grad);
    for (const program::Leaf& leaf : trace_.leaves) {
      const Tensor tensor = leaf.tensor.defined() || leaf.input < arguments_.inputs.size() ? tensor_of(leaf, arguments_.inputs) : Tensor();
      if (!tensor.defined() || tensor.grad().defined() == leaf.had_gradient) continue;
      problem(fmt::format("{} is expected to have {} gradient (set_grad)", tensor.get().describe(), leaf.had_gradient ? "a" : "no"));
    }
    for (program::ValueId id = 1; id < program_.value_count(); ++id) check_world(program_.value(id).type.spec);
    if (program_.world_draws != 0 && current_rank_or_null() == nullptr) problem("it draws random numbers on meshes: call it on a rank of a world");
    if (!problems_.empty()) fail(ErrorCode::invalid_argument, "[captured] the loaded program cannot run with these arguments:{}", problems_);
  }

 private:
  void problem(const std::string& text) { problems_ += "\n  " + text; }

  void check(const char* what, const Named& named, const Tensor& given, bool requires_grad) {
    const bool requires_now = given.defined() && grad_enabled() && given.requires_grad();
    const std::string expected = named.value == 0 ? "none" : text_of(program_.value(named.value).type, requires_grad);
    const std::string has = given.defined() ? text_of(program::type_of(given.get()), requires_now) : "none";
    if (expected != has) return problem(fmt::format("{} '{}': expected {}, but given {}", what, named.name, expected, has));
    if (named.value == 0) return;
    // The same buffer is one tree, and another one another.
    const Storage* const storage = given.get().value.storage().get();
    const program::ValueId root = program_.value(named.value).root;
    for (const Seen& other : seen_) {
      const bool one = other.value == named.value, shares = other.root == root;
      if (!one && shares != (other.storage == storage)) {
        problem(fmt::format("{} '{}': expected {} '{}'", what, named.name, shares ? "to share the buffer of" : "to be in another buffer than", other.name));
      } else if (one != (other.tensor == given.impl().get())) {
        problem(fmt::format("{} '{}': expected {} '{}'", what, named.name, one ? "the tensor that is also" : "another tensor than", other.name));
      }
    }
    seen_.push_back({named.value, root, given.impl().get(), storage, named.name});
  }

  void check_world(const DistSpec* spec) {
    const Rank* const rank = current_rank_or_null();
    if (spec == nullptr || checked_ == spec->mesh()) return;
    checked_ = spec->mesh();
    const std::vector<int>& processes = checked_->processes();
    const int last = *std::max_element(processes.begin(), processes.end());
    if (rank == nullptr || last >= rank->world().size()) problem(fmt::format("it computes on {}: call it on a rank of a world that has these processes", checked_->describe()));
  }

  const Trace& trace_;
  const Program& program_;
  const Arguments& arguments_;
  const ProcessMesh* checked_ = nullptr;
  struct Seen {
    ValueId value, root;
    const TensorImpl* tensor;
    const Storage* storage;
    std::string name;
  };
  std::vector<Seen> seen_;
  std::string problems_;
};

}  // namespace

struct CapturedFunction::State {
  program::Function function;
  std::optional<Trace> loaded;  // instead of what the function does
  CaptureOptions options;
  std::list<std::shared_ptr<Entry>> entries;  // most recently used first
  CaptureStats stats;
  std::shared_ptr<Occupant> occupant = std::make_shared<Occupant>();

  Program improved(Program program, int64_t goal = 0) const {
    return options.passes ? program::run_passes(std::move(program), {.skip = options.skip, .memory_goal = goal, .observer = options.observer}) : std::move(program);
  }

  std::shared_ptr<Entry> find(const KeyWords& key, Arguments& arguments) {
    for (auto at = entries.begin(); at != entries.end(); ++at) {
      if (!((*at)->key == key)) continue;
      arguments.parameters = parameters_of(**at, arguments.inputs);
      if (!fits(**at, arguments)) continue;
      entries.splice(entries.begin(), entries, at);
      return entries.front();
    }
    return nullptr;
  }

  std::shared_ptr<Entry> get(Arguments& arguments) {
    const KeyWords key = key_of(arguments.inputs);
    if (std::shared_ptr<Entry> found = find(key, arguments)) {
      ++stats.hits;
      return found;
    }
    ++stats.misses;
    auto entry = std::make_shared<Entry>();
    entry->trace = loaded ? *loaded : program::trace(function, arguments.inputs, options.scope);
    if (!loaded) entry->function = function;
    entry->key = key;
    entry->options = options.executor;
    entry->occupant = occupant;
    arguments.parameters = parameters_of(*entry, arguments.inputs);
    if (loaded) FitCheck(entry->trace, arguments).run();
    add_sharing(entry->sharing, arguments);
    add_moved(entry->sharing, arguments);
    add_types(entry->parameters, arguments.parameters);
    const bool has_backward = entry->trace.gradient && entry->trace.gradient->error.empty();
    const bool recomputes = options.passes && options.memory_goal > 0 && std::find(options.skip.begin(), options.skip.end(), "recompute") == options.skip.end();
    if (has_backward && recomputes) entry->trace = program::recompute(std::move(entry->trace), options.memory_goal);
    entry->trace.program.verify();
    entry->index();
    if (has_backward) {
      entry->split = program::split(entry->trace);
      entry->split->forward.verify();
      entry->split->backward.verify();
      entry->split->forward = improved(std::move(entry->split->forward));
      entry->parts = program::parts_of(*entry->split, *entry->trace.gradient);
      for (program::BackwardPart& part : entry->parts) part.program = improved(std::move(part.program));
    } else {
      entry->whole = improved(entry->trace.program, options.memory_goal);
      if (entry->trace.gradient) entry->parts = program::parts_of({}, *entry->trace.gradient);
    }
    entry->backward.resize(entry->parts.size());
    entries.push_front(entry);
    if (entries.size() > std::max<size_t>(options.capacity, 1)) {
      entries.pop_back();
      ++stats.evictions;
    }
    return entry;
  }
};

namespace {

/// What a program leaves in the gradients of leaves.
void set_gradients(const Entry& entry, const Arguments& arguments) {
  const Program& program = entry.program();
  if (program.gradients.empty()) return;
  const NoGrad off;
  const std::vector<Tensor> gradients = entry.forward->gradients(arguments);
  for (size_t i = 0; i < gradients.size(); ++i) tensor_of(entry.trace.leaves[entry.leaf_of[i]], arguments.inputs).set_grad(gradients[i]);
}

/// Outputs that are views of what had to move part from their sources, as those of eager calls.
void detach_outputs(const Entry& entry, const Arguments& arguments, const std::vector<Tensor>& outputs) {
  const Program& joint = entry.trace.program;
  for (const program::DetachedOutput& each : entry.trace.detached) {
    Tensor source = entry.argument(each.source, arguments);
    for (size_t i = 0; i < outputs.size() && !source.defined(); ++i) {
      if (outputs[i].defined() && joint.outputs[i].value == each.source) source = outputs[i];
    }
    const Ref<Storage>& storage = source.get().value.storage();
    const Ref<Storage>& view = outputs[each.output].get().value.storage();
    // One that is stale already never was in step with its source as it is now. Of a source that nobody sees the view itself stands for it.
    const Ref<Storage> from = storage == view ? Storage::absent() : storage;
    view->detach({from, from->version() - (each.stale ? 1 : 0), each.op, each.argument, each.from, each.to, {}, {}});
  }
}

/// Under ViewPolicy::sync stale views are brought up to date before they are read.
void refresh(const Arguments& arguments) {
  const Rank* const rank = current_rank_or_null();
  if (rank == nullptr || rank->policies.view != ViewPolicy::sync) return;
  for (const std::vector<Tensor>* tensors : {&arguments.inputs, &arguments.parameters}) {
    for (const Tensor& tensor : *tensors) {
      if (tensor.defined()) tensor.get().value.storage()->refresh_if_stale();
    }
  }
}

/// Outputs that are in the buffer of an argument, or of an output before, are views of that.
void mark_views(const Entry& entry, const Arguments& arguments, const std::vector<Tensor>& outputs) {
  const Program& joint = entry.trace.program;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    const ValueId value = joint.outputs[i].value;
    if (const ValueId source = program::source_of(joint, value)) {
      autograd::mark_view(kCaptured.name.data(), entry.argument(source, arguments), outputs[i]);
      continue;
    }
    for (size_t j = 0; j < i; ++j) {
      if (outputs[j].defined() && joint.value(joint.outputs[j].value).root == joint.value(value).root) {
        autograd::mark_view(kCaptured.name.data(), outputs[j], outputs[i]);
        break;
      }
    }
  }
}

}  // namespace

CapturedFunction::CapturedFunction(program::Function function, CaptureOptions options) : state_(std::make_shared<State>()) {
  if (!function) fail(ErrorCode::invalid_argument, "[CapturedFunction] there is no function to capture; give one that takes and returns tensors");
  state_->function = std::move(function);
  state_->options = std::move(options);
}
CapturedFunction::CapturedFunction(Trace loaded) : state_(std::make_shared<State>()) {
  state_->function = [](const std::vector<Tensor>&) -> std::vector<Tensor> {
    fail(ErrorCode::capture, "[captured] a loaded program runs neither in a dry world nor inside of another capture, as both would need the function that it was captured from");
  };
  state_->loaded = std::move(loaded);
}
CapturedFunction::~CapturedFunction() = default;
CapturedFunction::CapturedFunction(const CapturedFunction&) = default;
CapturedFunction& CapturedFunction::operator=(const CapturedFunction&) = default;

std::vector<Tensor> CapturedFunction::operator()(const std::vector<Tensor>& inputs, CallSite site) {
  if (this_thread.dry != nullptr) return state_->function(inputs);
  const Occupant::Stay stay(*state_->occupant);
  Arguments arguments{inputs, {}};
  const std::shared_ptr<Entry> entry = state_->get(arguments);
  refresh(arguments);
  autograd::note_reads(arguments.inputs, arguments.parameters);
  if (!entry->forward) entry->forward = std::make_unique<Executor>(entry->program(), arguments, entry->options);
  std::vector<Again> again;
  for (const program::BackwardPart& part : entry->parts) again.emplace_back(*entry, part, arguments);
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
  for (size_t p = 0; p < entry->parts.size(); ++p) {
    const program::BackwardPart& part = entry->parts[p];
    std::vector<OwnedEdge> edges;
    for (const size_t i : part.wanted) edges.push_back(autograd::edge_of(entry->argument(gradient.wanted[i], arguments)));
    autograd::Recording record(site, kCaptured, std::move(edges));
    std::vector<Tensor> differentiable;
    for (const size_t i : part.outputs) differentiable.push_back(outputs[gradient.outputs[i]]);
    Backward backward(entry, p, std::move(again[p]), arguments, values, entry->forward->random_start());
    const std::vector<Tensor> linked = record.link_all(std::move(backward), std::move(differentiable));
    for (size_t i = 0; i < linked.size(); ++i) outputs[gradient.outputs[part.outputs[i]]] = linked[i];
  }
  mark_views(*entry, arguments, outputs);
  return outputs;
}

const Trace& CapturedFunction::trace(const std::vector<Tensor>& inputs) {
  const Occupant::Stay stay(*state_->occupant);
  Arguments arguments{inputs, {}};
  return state_->get(arguments)->trace;
}

CaptureStats CapturedFunction::stats() const {
  const Occupant::Stay stay(*state_->occupant);
  CaptureStats stats = state_->stats;
  stats.entries = state_->entries.size();
  return stats;
}

program::MemoryReport CapturedFunction::memory(const std::vector<Tensor>& inputs) {
  const Occupant::Stay stay(*state_->occupant);
  Arguments arguments{inputs, {}};
  const std::shared_ptr<Entry> entry = state_->get(arguments);
  if (!entry->forward) entry->forward = std::make_unique<Executor>(entry->program(), arguments, entry->options);
  return entry->forward->memory();
}

CapturedFunction capture(program::Function function, const std::vector<Tensor>& example_inputs, CaptureOptions options) {
  CapturedFunction captured(std::move(function), std::move(options));
  captured.trace(example_inputs);
  return captured;
}

CapturedFunction load_function(const std::string& path, const Scope& scope) { return CapturedFunction(program::load(path, scope)); }

}  // namespace shard
