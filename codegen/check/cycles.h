// Finds cycles of ops.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "model/op.h"

namespace shardgen {

using OpsByName = std::map<std::string_view, std::vector<const Op*>>;

inline OpsByName group_by_name(const std::vector<Family>& families) {
  OpsByName ops;
  for (const Family& family : families) {
    for (const Op& op : family.ops) ops[op.name.text].push_back(&op);
  }
  return ops;
}

inline std::vector<std::string_view> names_of(const OpsByName& ops) {
  std::vector<std::string_view> names;
  for (const auto& [name, each] : ops) names.push_back(name);
  return names;
}

/// The ops of each cycle, the first of the input first. `next` returns the op to which another one
/// leads, or null.
template <class Next>
std::vector<std::vector<const Op*>> find_cycles(const std::vector<Family>& families, Next next) {
  std::vector<std::vector<const Op*>> cycles;
  std::map<const Op*, int> walks;  // the walk in which an op was seen first; each op is visited once
  int walk = 0;
  for (const Family& family : families) {
    for (const Op& start : family.ops) {
      ++walk;
      const Op* at = &start;
      while (at != nullptr && walks.emplace(at, walk).second) at = next(*at);
      if (at == nullptr || walks[at] != walk) continue;
      std::vector<const Op*>& cycle = cycles.emplace_back();
      const Op* const first = at;
      do {
        cycle.push_back(at);
        at = next(*at);
      } while (at != first);
    }
  }
  return cycles;
}

}  // namespace shardgen
