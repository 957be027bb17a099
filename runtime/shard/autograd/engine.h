// Runs recorded steps in reverse order.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "shard/autograd/autograd.h"
#include "shard/autograd/leaf.h"
#include "shard/autograd/node.h"

namespace shard::autograd {

/// Throws autograd where the shape or dtype of a tensor has changed since its step was recorded: in
/// place, where nothing is recorded.
void check_shape(const Tensor& tensor, const OutputInfo& recorded);

/// One backward pass. Steps run in reverse order of their recording, alike on every rank. The
/// inputs of a step come from steps with lower numbers, so a step has all its gradients when its
/// turn comes.
class Engine {
 public:
  explicit Engine(const BackwardOptions& options) : options_(options) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// Adds an output with its gradient.
  void start(const Tensor& output, Tensor gradient);
  /// Whether steps before a captured one may lead to another captured one.
  enum class Beyond : uint8_t { search, stop };
  /// Captures the gradients of these edges; gradients of leaves are not accumulated then.
  void capture(const std::vector<OwnedEdge>& edges, Beyond beyond = Beyond::search);
  void run();
  /// The gradient of captured edge `i`, or undefined.
  Tensor captured(size_t i) const { return captured_[i]; }

 private:
  struct Start {
    OwnedEdge edge;
    Tensor gradient;
  };
  struct Pending {
    Tensor leaf;
    Tensor gradient;
    const DistSpec* to;
  };
  void send(const Edge& edge, Tensor gradient, const Node* from);
  void process(Node& node);
  static void run_hooks(Node& node);
  void take_captures(Node& node);
  static void clear(Node& node);
  void find_needed();
  void finish_leaf(const Tensor& leaf, Tensor gradient);
  void flush();
  void add_to_leaf(const Tensor& leaf, Tensor gradient);

  const BackwardOptions options_;
  std::vector<Ref<GradNode>> heap_;  // by sequence
  std::vector<Start> starts_;
  std::unordered_set<const Node*> needed_;
  bool captures_ = false;
  Beyond beyond_ = Beyond::search;
  // node: output, index of the captured edge
  std::unordered_map<const Node*, std::vector<std::pair<uint32_t, size_t>>> wanted_;
  std::vector<Tensor> captured_;
  std::vector<Pending> bucket_;  // gradients of leaves that wait to be sent together with others
  std::vector<Pending> moving_;  // gradients in flight to their leaves
  int64_t bucket_bytes_ = 0;
};

}  // namespace shard::autograd
