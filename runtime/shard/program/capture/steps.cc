#include "shard/program/capture/steps.h"

#include <algorithm>
#include <unordered_set>

namespace shard::program {
namespace {

/// The steps that a tensor was computed by, its own first.
std::vector<const autograd::Node*> steps_of(const Tensor& tensor) {
  std::vector<const autograd::Node*> found;
  std::unordered_set<const autograd::Node*> seen;
  const autograd::OwnedEdge start = autograd::edge_of(tensor);
  const auto visit = [&](const autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) found.push_back(node);
  };
  visit(start.get());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const autograd::Edge& edge : found[i]->edges()) visit(edge.node);
  }
  return found;
}

}  // namespace

bool is_whole(const Tensor& tensor) {
  const std::vector<const autograd::Node*> steps = steps_of(tensor);
  return std::none_of(steps.begin(), steps.end(), [](const autograd::Node* node) { return node->released(); });
}

std::vector<std::vector<size_t>> reached(const std::vector<Tensor>& outputs, const std::vector<Tensor>& leaves) {
  std::vector<std::vector<size_t>> reached;
  for (const Tensor& output : outputs) {
    const std::vector<const autograd::Node*> steps = steps_of(output);
    const std::unordered_set<const autograd::Node*> set(steps.begin(), steps.end());
    std::vector<size_t>& numbers = reached.emplace_back();
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (set.contains(autograd::edge_of(leaves[i]).get())) numbers.push_back(i);
    }
  }
  return reached;
}

}  // namespace shard::program
