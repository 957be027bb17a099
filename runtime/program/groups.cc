#include "program/groups.h"

#include <algorithm>
#include <unordered_map>

#include "autograd/node.h"

namespace shard::program {

using autograd::Edge;
using autograd::Node;

std::vector<size_t> groups_of(const std::vector<Tensor>& tensors) {
  std::vector<size_t> group;
  std::unordered_map<const Node*, size_t> first;  // the first tensor that a step leads to
  for (size_t i = 0; i < tensors.size(); ++i) {
    group.push_back(i);
    const autograd::OwnedEdge start = autograd::edge_of(tensors[i]);
    std::vector<const Node*> found = {start.get()};
    for (size_t k = 0; k < found.size(); ++k) {
      if (found[k]->leaf() != nullptr) continue;
      const auto [place, is_new] = first.emplace(found[k], i);
      if (!is_new) {
        const size_t joined = group[i], other = group[place->second];
        std::replace(group.begin(), group.end(), joined, other);
        continue;
      }
      for (const Edge& edge : found[k]->edges()) {
        if (edge) found.push_back(edge.node);
      }
    }
  }
  std::vector<size_t> numbers = group;
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (size_t& each : group) each = static_cast<size_t>(std::lower_bound(numbers.begin(), numbers.end(), each) - numbers.begin());
  return group;
}

}  // namespace shard::program
