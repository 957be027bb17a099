// Steps with gradients that programs give: functions of the user, and scopes that are computed again.
#include <algorithm>
#include <map>
#include <mutex>

#include "autograd/boundary.h"
#include "autograd/engine.h"
#include "autograd/record.h"
#include "call/dense_call.h"
#include "core/error.h"
#include "dist/world.h"
#include "ops/math.h"

namespace shard::autograd {
namespace {

constexpr OpDef kGate = {.name = "gate", .inputs = slots<"x">, .outputs = slots<"out">};
constexpr OpDef kRecompute = {.name = "recompute", .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};

constinit thread_local Boundary* innermost = nullptr;

/// The facts of a function of the user. They stay: recorded steps refer to them.
const OpDef& facts_of(const std::string& name) {
  static std::mutex lock;
  static std::map<std::string, OpDef> all;
  const std::scoped_lock guard(lock);
  const auto place = all.try_emplace(name).first;
  place->second = {.name = place->first, .inputs = slots<"inputs[]">, .outputs = slots<"outputs[]">};
  return place->second;
}

/// What a function has returned, without the history that it may have there, and on buffers that nobody else has: a view of another tensor
/// would get a history of its own beside that of what it is a view of.
std::vector<Tensor> own_outputs(std::string_view name, std::vector<Tensor> outputs) {
  const NoGrad off;
  std::vector<Tensor> own;
  for (const Tensor& output : outputs) {
    if (!output.defined()) {
      fail(ErrorCode::undefined, "[{}] the function has returned an undefined tensor as output {}; return a value, maybe an empty one", name, own.size());
    }
    own.push_back(output.detach());
  }
  outputs.clear();  // and with them the steps of the function, and what these have saved
  for (Tensor& output : own) {
    if (!output.get().value.storage()->unique()) output = assign(output);
  }
  return own;
}

/// The states of all generators that calls of this thread draw from.
class RandomState {
 public:
  static RandomState now() {
    RandomState state;
    const Rank* const rank = current_rank_or_null();
    state.plain_ = call::thread_generator().state();
    if (rank != nullptr) state.dist_ = rank->generator.state();
    return state;
  }
  void restore() const {
    call::thread_generator().set_state(plain_);
    if (Rank* const rank = current_rank_or_null()) rank->generator.set_state(dist_);
  }

 private:
  RandomKey plain_, dist_;
};

/// Random numbers as they were, for a scope.
class Replay {
 public:
  explicit Replay(const RandomState& state) { state.restore(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() { before_.restore(); }

 private:
  RandomState before_ = RandomState::now();
};

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// The gradient of a scope: runs it again, recorded, and goes through that.
class Recomputation {
 public:
  Recomputation(Function function, const std::vector<Tensor>& inputs) : function_(std::move(function)), random_(RandomState::now()) {
    if (const Rank* const rank = current_rank_or_null()) policies_ = rank->policies;
    for (const Tensor& input : inputs) inputs_.emplace_back(input);
  }

  void operator()(Pass& pass) const {
    const bool recorded = grad_enabled();
    Boundary boundary;  // until the end: what is recomputed within this scope finds the same gates
    const std::vector<Tensor> outputs = run_again(pass);
    const std::vector<Tensor> gradients = pass.grads_or_none(0);
    if (outputs.size() != gradients.size()) {
      fail(ErrorCode::autograd, "[recompute] the function has returned {} tensors in backward, and {} before; it must do the same again", outputs.size(),
           gradients.size());
    }
    Engine engine({.create_graph = recorded});
    bool any = false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      engine.start(outputs[i], gradients[i]);
      any = true;
    }
    engine.capture(boundary.gates(), Engine::Beyond::stop);
    if (any) engine.run();
    pass.give<0>(by_edge(pass.node(), boundary, engine));
  }

 private:
  std::vector<Tensor> run_again(const Pass& pass) const {
    const GradMode on(true);
    const Replay replay(random_);
    std::vector<Tensor> saved;
    for (const SavedTensor& input : inputs_) saved.push_back(input.input(pass, 0));
    Rank* const rank = current_rank_or_null();
    if (rank == nullptr) return function_(saved);
    const PolicyScope policies(*rank, policies_);
    return function_(saved);
  }

  /// The gradients of what was outside the first time.
  static std::vector<Tensor> by_edge(const Node& node, const Boundary& boundary, const Engine& engine) {
    std::vector<Tensor> gradients(node.edges().size());
    for (size_t i = 0; i < boundary.outside().size(); ++i) {
      const Edge outside = {boundary.outside()[i].get(), boundary.outside()[i].output};
      const auto place = std::find(node.edges().begin(), node.edges().end(), outside);
      if (place == node.edges().end()) {
        fail(ErrorCode::autograd, "[recompute] the function has used a tensor that requires a gradient, made by [{}], in backward but not before; it must do "
             "the same again", outside.node->op().name);
      }
      gradients[static_cast<size_t>(place - node.edges().begin())] = engine.captured(i);
    }
    return gradients;
  }

  Function function_;
  RandomState random_;
  Policies policies_;
  std::vector<SavedTensor> inputs_;
};

}  // namespace

Boundary::Boundary() : before_(innermost), start_(Node::last_sequence()) { innermost = this; }

Boundary::~Boundary() { innermost = before_; }

Boundary* Boundary::current() { return innermost; }

NoBoundary::NoBoundary() : before_(std::exchange(innermost, nullptr)) {}

NoBoundary::~NoBoundary() { innermost = before_; }

OwnedEdge Boundary::cross(OwnedEdge edge) {
  // Leaves get their steps when they are first used, which may be in the scope.
  if (edge.get()->sequence() > start_ && edge.get()->leaf() == nullptr) return edge;
  if (before_ != nullptr) edge = before_->cross(std::move(edge));
  const auto same = [&](const OwnedEdge& other) { return other.node == edge.node && other.output == edge.output; };
  const auto place = std::find_if(outside_.begin(), outside_.end(), same);
  if (place != outside_.end()) return gates_[static_cast<size_t>(place - outside_.begin())];
  outside_.push_back(edge);
  const auto open = [](Pass& pass) { pass.give<0>(pass.grad(0)); };
  const OutputInfo info = edge.get()->output(edge.output);
  auto* const gate = new FunctionNode<decltype(open)>(kGate, {edge.leak()}, open);
  gate->set_output(0, info);
  return gates_.emplace_back(OwnedEdge{Ref<GradNode>::adopt(gate), 0});
}

}  // namespace shard::autograd

namespace shard {

using namespace autograd;

std::vector<Tensor> apply(const CustomFunction& function, const std::vector<Tensor>& inputs, CallSite site) {
  if (!function.forward || !function.backward) {
    fail(ErrorCode::invalid_argument, "[{}] a custom function needs both forward and backward", function.name);
  }
  const auto forward = [&] {
    const NoGrad off;
    return own_outputs(function.name, function.forward(inputs));
  };
  if (!autograd::records(inputs)) return forward();
  Recording record(site, facts_of(function.name), inputs);
  std::vector<SavedTensor> saved_inputs = record.save(inputs), saved_outputs;
  std::vector<Tensor> outputs = forward();
  for (const Tensor& output : outputs) saved_outputs.push_back(SavedTensor::output_of(output));
  auto backward = [f = function.backward, saved_inputs = std::move(saved_inputs), saved_outputs = std::move(saved_outputs)](Pass& pass) {
    const std::string_view name = pass.node().op().name;
    std::vector<Tensor> gradients = f(autograd::inputs(saved_inputs, pass, 0), pass.outputs(saved_outputs, 0), pass.grads(0));
    if (gradients.size() != saved_inputs.size()) {
      fail(ErrorCode::autograd, "[{}] backward has returned {} gradients for {} inputs; return one for each, an undefined tensor where there is none", name,
           gradients.size(), saved_inputs.size());
    }
    pass.give<0>(std::move(gradients));
  };
  return record.link_all(std::move(backward), std::move(outputs));
}

std::vector<Tensor> recompute(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function, const std::vector<Tensor>& inputs, CallSite site) {
  if (!grad_enabled()) return function(inputs);
  Recomputation backward(function, inputs);
  std::vector<Tensor> outputs;
  std::vector<OwnedEdge> outside;
  {
    // Recorded too, if only to find out what the function takes from outside beside its inputs.
    Boundary boundary;
    outputs = function(inputs);
    for (const Tensor& output : outputs) {
      if (output.defined()) edge_of(output);  // it may be one from outside itself
    }
    outside = boundary.outside();
  }
  outputs = own_outputs("recompute", std::move(outputs));
  if (outside.empty()) return outputs;
  return Recording(site, kRecompute, std::move(outside)).link_all(std::move(backward), std::move(outputs));
}

}  // namespace shard
