#include "shard/autograd/rerun.h"

#include <algorithm>

#include "shard/autograd/boundary.h"
#include "shard/autograd/engine.h"
#include "shard/autograd/grad_mode.h"
#include "shard/call/dense_call.h"
#include "shard/core/error.h"
#include "shard/dist/world.h"

namespace shard::autograd {
namespace {

/// Restores the state of random numbers for a scope.
class Replay {
 public:
  explicit Replay(const RandomState& state) { state.restore(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() { before_.restore(); }

 private:
  RandomState before_ = RandomState::now();
};

/// The gradients for the edges that were outside in the first run.
std::vector<Tensor> by_edge(const Node& node, const Boundary& boundary, const Engine& engine) {
  std::vector<Tensor> gradients(node.edges().size());
  for (size_t i = 0; i < boundary.outside().size(); ++i) {
    if (!engine.captured(i).defined()) continue;
    const Edge outside = {boundary.outside()[i].get(), boundary.outside()[i].output};
    const auto place = std::find(node.edges().begin(), node.edges().end(), outside);
    if (place == node.edges().end()) {
      fail(ErrorCode::autograd,
           "[{}] in backward the function has used a tensor that requires a gradient, made by [{}], that it did not "
           "use in forward; it must do the same in both",
           node.op().name, outside.node->op().name);
    }
    gradients[static_cast<size_t>(place - node.edges().begin())] = engine.captured(i);
  }
  return gradients;
}

}  // namespace

RandomState RandomState::now() {
  RandomState state;
  const Rank* const rank = current_rank_or_null();
  state.plain_ = call::thread_generator().state();
  if (rank != nullptr) state.dist_ = rank->generator.state();
  return state;
}

void RandomState::restore() const {
  call::thread_generator().set_state(plain_);
  if (Rank* const rank = current_rank_or_null()) rank->generator.set_state(dist_);
}

Rerun::Rerun(Function function, const std::vector<Tensor>& inputs) : function_(std::move(function)) {
  if (const Rank* const rank = current_rank_or_null()) policies_ = rank->policies;
  inputs_.reserve(inputs.size());
  for (const Tensor& input : inputs) inputs_.emplace_back(input);
}

void Rerun::operator()(BackwardContext& context) const {
  const bool recorded = grad_enabled();
  Boundary boundary;  // until the end: what is recomputed within this scope finds the same gates
  const std::vector<Tensor> outputs = call(context);
  const std::vector<Tensor> gradients = context.grads_or_none(0);
  if (outputs.size() != gradients.size()) {
    fail(ErrorCode::autograd,
         "[{}] the function has returned {} tensors in backward, but {} in forward; it must do the same in both",
         context.node().op().name, outputs.size(), gradients.size());
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
  context.set_grads<0>(by_edge(context.node(), boundary, engine));
}

std::vector<Tensor> Rerun::call(const BackwardContext& context) const {
  for (const SavedTensor& read : reads_)
    read.check_same(context, "a tensor that the function reads but that is not an input");
  const GradMode on(true);
  const Replay replay(random_);
  std::vector<Tensor> saved;
  for (const SavedTensor& input : inputs_) saved.push_back(input.input(context, 0));
  Rank* const rank = current_rank_or_null();
  if (rank == nullptr) return function_(saved);
  const PolicyScope policies(*rank, policies_);
  return function_(saved);
}

}  // namespace shard::autograd
