// Runs recorded steps backwards.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "autograd/autograd.h"
#include "autograd/leaf.h"
#include "autograd/node.h"

namespace shard::autograd {

/// Throws autograd where a tensor has got another shape or dtype since its step was recorded: in place, where nothing is.
void check_shape(const Tensor& tensor, const OutputInfo& recorded);

/// One backward pass. Steps run in reverse order of their recording, on every rank alike: the inputs of a step come from steps with lower
/// numbers, so a step whose turn it is has got all its gradients.
class Engine {
 public:
  explicit Engine(const BackwardOptions& options) : options_(options) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  /// An output with its gradient.
  void start(const Tensor& output, Tensor gradient);
  /// Whether steps before one that is captured may lead to another one.
  enum class Beyond : uint8_t { search, stop };
  /// The gradients of these edges are wanted instead of those of leaves.
  void capture(const std::vector<OwnedEdge>& edges, Beyond beyond = Beyond::search);
  void run();
  /// Of captured edge `i`, or undefined.
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
  void finish_leaf(const Tensor& leaf, const Tensor& gradient);
  void flush();
  void add_to_leaf(const Tensor& leaf, Tensor gradient);

  const BackwardOptions options_;
  std::vector<Ref<GradNode>> heap_;  // by sequence
  std::vector<Start> starts_;
  std::unordered_set<const Node*> needed_;
  bool captures_ = false;
  Beyond beyond_ = Beyond::search;
  std::unordered_map<const Node*, std::vector<std::pair<uint32_t, size_t>>>
      wanted_;  // node: output, index of the capture
  std::vector<Tensor> captured_;
  std::vector<Pending> bucket_;  // gradients of leaves that wait for others to be moved with
  std::vector<Pending> moving_;  // that are under way to their leaves
  int64_t bucket_bytes_ = 0;
};

}  // namespace shard::autograd
