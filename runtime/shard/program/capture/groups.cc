#include "shard/program/capture/groups.h"

#include <algorithm>
#include <unordered_map>

#include "shard/autograd/node.h"

namespace shard::program {

using autograd::Edge;
using autograd::Node;

std::vector<size_t> groups_of(const std::vector<Tensor>& tensors) {
  std::vector<size_t> group;
  const auto join = [&](size_t a, size_t b) {
    const size_t joined = group[a], other = group[b];
    std::replace(group.begin(), group.end(), joined, other);
  };
  std::unordered_map<const Node*, size_t> first;  // for each step, the first tensor that was computed by it
  // for each leaf: the tensors that its gradients come from
  std::unordered_map<const Node*, std::vector<size_t>> gradients;
  for (size_t i = 0; i < tensors.size(); ++i) {
    group.push_back(i);
    const autograd::OwnedEdge start = autograd::edge_of(tensors[i]);
    std::vector<const Node*> found = {start.get()};
    for (size_t k = 0; k < found.size(); ++k) {
      if (found[k]->leaf() != nullptr) {
        gradients[found[k]].push_back(i);
        continue;
      }
      const auto [place, is_new] = first.emplace(found[k], i);
      if (!is_new) {
        join(i, place->second);
        continue;
      }
      for (const Edge& edge : found[k]->edges()) {
        if (edge) found.push_back(edge.node);
      }
    }
  }
  for (const auto& [leaf, from] : gradients) {
    for (size_t i = 1; i < from.size() && from.size() > 2; ++i) join(from[i], from[0]);
  }
  // Numbered in the order of the tensors, which is equal on all ranks.
  std::unordered_map<size_t, size_t> numbers;
  for (size_t& each : group) each = numbers.emplace(each, numbers.size()).first->second;
  return group;
}

}  // namespace shard::program
