#include "program/function.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <map>

#include "autograd/leaf.h"
#include "autograd/record.h"
#include "autograd/rerun.h"
#include "call/plan_cache.h"
#include "core/error.h"
#include "core/writing.h"
#include "dist/dist_tensor.h"
#include "ops/creation.h"
#include "program/json.h"
#include "program/parts.h"
#include "program/recompute.h"
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

/// What is captured, and how: of a function and of all programs that were made of it.
struct CaptureSource {
  program::Function function;  // none where a program was loaded
  CaptureOptions options;
  Occupant occupant;

  Program improved(Program program, int64_t goal = 0) const {
    return options.passes ? program::run_passes(std::move(program), {.skip = options.skip, .memory_goal = goal, .observer = options.observer}) : std::move(program);
  }
};

/// A part of a gradient, and what runs it.
struct BackwardRun {
  program::BackwardPart part;
  std::unique_ptr<Executor> executor = {};  // once it has run
};

/// The backward pass of outputs of one group.
struct GradientStep {
  BackwardRun all;  // without a program where the gradient is an error
  std::map<std::vector<bool>, BackwardRun> some = {};  // by which outputs have a gradient, where not all have
};

/// A program with what it needs to run.
struct Entry {
  std::shared_ptr<CaptureSource> source;
  KeyWords key;
  KeyWords sharing;     // of inputs and parameters
  KeyWords parameters;  // their types
  Trace trace;
  std::optional<Split> split;  // where the function has a gradient
  Program whole;               // what runs where it has none
  std::unique_ptr<Executor> forward;
  std::vector<GradientStep> steps;
  std::vector<size_t> argument_of;  // by value of trace.program: 1 + its number among the inputs of the function and then the parameters; 0: it is none
  std::vector<size_t> leaf_of;      // by gradient that a run leaves: its number in trace.leaves

  const Program& program() const { return split ? split->forward : whole; }
  void prepare_forward(const Arguments& arguments) {
    if (!forward) forward = std::make_unique<Executor>(program(), arguments, source->options.executor);
  }
  /// The backward pass of those outputs of a step that have a gradient.
  BackwardRun& backward(size_t step, const std::vector<bool>& given) {
    GradientStep& of = steps[step];
    if (std::find(given.begin(), given.end(), false) == given.end()) return of.all;
    if (const auto found = of.some.find(given); found != of.some.end()) return found->second;
    constexpr size_t kKept = 16;
    if (of.some.size() == kKept) of.some.clear();
    program::BackwardPart part = program::narrow(*split, *trace.gradient, of.all.part, given);
    part.program.verify();
    part.program = source->improved(std::move(part.program));
    return of.some.emplace(given, BackwardRun{std::move(part)}).first->second;
  }
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
  Again(const Entry& entry, const program::BackwardPart& part, const Arguments& arguments) : entry_(entry) {
    if (!entry.source->function || !entry.trace.program.gradients.empty()) return;  // it is an error
    rerun_.emplace([&entry, &part](const std::vector<Tensor>& inputs) { return outputs_of(entry, part, inputs); }, arguments.inputs);
    versions_.reserve(arguments.parameters.size());
    for (const Tensor& parameter : arguments.parameters) versions_.push_back(parameter.defined() ? parameter.version() : 0);
  }

  void operator()(Pass& pass) const {
    if (!entry_.source->function) {
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
    (*rerun_)(pass);
  }

 private:
  static std::vector<Tensor> outputs_of(const Entry& entry, const program::BackwardPart& part, const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> outputs = entry.source->function(inputs);
    std::vector<Tensor> found;
    for (const size_t number : part.outputs) {
      const size_t i = entry.trace.gradient->outputs[number];
      if (i < outputs.size() && outputs[i].defined()) found.push_back(outputs[i]);
    }
    return found;
  }

  const Entry& entry_;
  std::optional<autograd::Rerun> rerun_;
  std::vector<uint64_t> versions_;
};

/// The step of the outputs of a call that share a backward pass.
class Backward {
 public:
  /// `values`: what forward has given beside its outputs.
  Backward(std::shared_ptr<Entry> entry, size_t step, Again again, const Arguments& arguments, std::span<const Tensor> values, program::RandomStart random)
      : entry_(std::move(entry)), step_(step), again_(std::move(again)), random_(random) {
    if (!entry_->split) return;
    const Split& split = *entry_->split;
    const program::BackwardPart& part = entry_->steps[step].all.part;
    values_.resize(split.middles.size());
    for (const size_t i : part.inputs) {
      if (i >= split.middles.size()) break;  // then come the gradients of outputs
      const program::Middle& middle = split.middles[i];
      if (middle.output >= 0) values_[i] = Saved(values[static_cast<size_t>(middle.output) - split.outputs]);
    }
    sources_.resize(split.sources.size());
    for (const size_t i : part.parameters) sources_[i] = Saved(entry_->argument(split.sources[i], arguments).detach());
  }

  void operator()(Pass& pass) const {
    if (const std::string& error = entry_->trace.gradient->error; !error.empty()) fail(ErrorCode::autograd, "[captured] {}", error);
    if (grad_enabled()) return again_(pass);
    const Occupant::Stay stay(entry_->source->occupant);
    const std::vector<Tensor> gradients = pass.grads_or_none(0);
    std::vector<bool> given;
    for (const Tensor& gradient : gradients) given.push_back(gradient.defined());
    BackwardRun& run = entry_->backward(step_, given);
    check_versions(run.part);
    const Arguments arguments = arguments_of(run.part, gradients);
    if (!run.executor) {
      program::ExecutorOptions options = entry_->source->options.executor;
      options.keep_arguments = false;  // what forward has kept for this backward is freed
      run.executor = std::make_unique<Executor>(run.part.program, arguments, options);
    }
    pass.give<0>(run.executor->run(arguments, random_));
  }

 private:
  struct Saved {
    Saved() = default;
    explicit Saved(const Tensor& saved) : tensor(saved), version(saved.defined() ? saved.version() : 0) {}
    Tensor tensor;
    uint64_t version = 0;
  };

  /// `gradients`: of the outputs of the step.
  Arguments arguments_of(const program::BackwardPart& part, const std::vector<Tensor>& gradients) const {
    Arguments arguments;
    const size_t middles = values_.size();
    for (size_t k = 0; k < part.inputs.size(); ++k) {
      const size_t i = part.inputs[k];
      if (i < middles) {
        arguments.inputs.push_back(values_[i].tensor);
        continue;
      }
      const program::Type& type = part.program.value(part.program.inputs[k].value).type;
      const auto output = std::find(part.outputs.begin(), part.outputs.end(), i - middles);  // none: of a step that does not run
      const Tensor given = output == part.outputs.end() ? Tensor() : gradients[static_cast<size_t>(output - part.outputs.begin())];
      arguments.inputs.push_back(!given.defined() ? zeros_of(type) : type.spec == nullptr ? given : reshard(given, type.spec));
    }
    for (const size_t i : part.parameters) arguments.parameters.push_back(snapshot(sources_[i].tensor));
    return arguments;
  }

  /// Contributions of zero, where a reduction is pending.
  static Tensor zeros_of(const program::Type& type) {
    if (type.spec == nullptr) return zeros(IntArray(type.meta.dims), type.meta.dtype, type.device);
    const auto at = type.spec->mesh()->coordinate(current_rank().id());
    if (!at) return make_dist(current_rank(), type.meta, type.spec, absent_value(type.meta));
    const Tensor piece = shard::zeros(IntArray(local_piece(type.spec->layout(), type.meta.dims, *at).dims), type.meta.dtype, type.device);
    return make_dist(current_rank(), type.meta, type.spec, piece.get().value);
  }

  /// A view that had to move holds what forward has read, also when its source was written since.
  static Tensor snapshot(const Tensor& source) {
    if (!source.get().value.storage()->stale()) return source;
    Tensor copy(source.impl()->alias());
    DenseTensor& value = copy.get().value;
    value = value.storage()->state() == Storage::State::absent ? absent_value(source.meta()) : clone(value);
    return copy;
  }

  void check_versions(const program::BackwardPart& part) const {
    for (const size_t i : part.inputs) {
      if (i < values_.size()) check_version(values_[i], "an output");
    }
    for (size_t k = 0; k < part.parameters.size(); ++k) check_version(sources_[part.parameters[k]], fmt::format("'{}'", part.program.parameters[k].name));
  }

  static void check_version(const Saved& saved, std::string_view name) {
    const Tensor& tensor = saved.tensor;
    if (!tensor.defined() || tensor.version() == saved.version) return;
    const LastWrite* const write = tensor.get().value.storage()->last_write();
    fail(ErrorCode::autograd,
         "[captured] backward reads {} ({}) as the captured function had it: version {}, but it is at version {}, written last by {}. Call backward before that write, or give the "
         "function a copy (assign(x))", name, tensor.get().describe(), saved.version, tensor.version(), LastWrite::text(write));
  }

  std::shared_ptr<Entry> entry_;
  size_t step_;
  Again again_;
  program::RandomStart random_;
  std::vector<Saved> values_, sources_;  // by number among the middles and sources of the split
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
  std::shared_ptr<CaptureSource> source = std::make_shared<CaptureSource>();
  std::optional<Trace> loaded;  // instead of what the function does
  std::list<std::shared_ptr<Entry>> entries;  // most recently used first
  CaptureStats stats;

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
    const CaptureOptions& options = source->options;
    entry->trace = loaded ? *loaded : program::trace(source->function, arguments.inputs, options.scope);
    entry->source = source;
    entry->key = key;
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
  state_->source->function = std::move(function);
  state_->source->options = std::move(options);
}
CapturedFunction::CapturedFunction(Trace loaded) : state_(std::make_shared<State>()) { state_->loaded = std::move(loaded); }
CapturedFunction::~CapturedFunction() = default;
CapturedFunction::CapturedFunction(const CapturedFunction&) = default;
CapturedFunction& CapturedFunction::operator=(const CapturedFunction&) = default;

std::vector<Tensor> CapturedFunction::operator()(const std::vector<Tensor>& inputs, CallSite site) {
  if (this_thread.dry != nullptr) {
    if (state_->source->function) return state_->source->function(inputs);
    fail(ErrorCode::capture, "[captured] a loaded program runs neither in a dry world nor inside of another capture, as both would need the function that it was captured from");
  }
  const Occupant::Stay stay(state_->source->occupant);
  Arguments arguments{inputs, {}};
  const std::shared_ptr<Entry> entry = state_->get(arguments);
  refresh(arguments);
  autograd::note_reads(arguments.inputs, arguments.parameters);
  entry->prepare_forward(arguments);
  std::vector<Again> again;
  for (const GradientStep& step : entry->steps) again.emplace_back(*entry, step.all.part, arguments);
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
  const Occupant::Stay stay(state_->source->occupant);
  Arguments arguments{inputs, {}};
  return state_->get(arguments)->trace;
}

CaptureStats CapturedFunction::stats() const {
  const Occupant::Stay stay(state_->source->occupant);
  CaptureStats stats = state_->stats;
  stats.entries = state_->entries.size();
  return stats;
}

program::MemoryReport CapturedFunction::memory(const std::vector<Tensor>& inputs) {
  const Occupant::Stay stay(state_->source->occupant);
  Arguments arguments{inputs, {}};
  const std::shared_ptr<Entry> entry = state_->get(arguments);
  entry->prepare_forward(arguments);
  return entry->forward->memory();
}

CapturedFunction capture(program::Function function, const std::vector<Tensor>& example_inputs, CaptureOptions options) {
  CapturedFunction captured(std::move(function), std::move(options));
  captured.trace(example_inputs);
  return captured;
}

CapturedFunction load_function(const std::string& path, const Scope& scope) { return CapturedFunction(program::load(path, scope)); }

}  // namespace shard
