// The policies of a rank, each in turn with another value than at first: for tests of what depends on them.
#pragma once

#include <vector>

#include "shard/dist/policies.h"

namespace shard::test {

struct Changed {
  const char* name;
  PolicyUse use;
  Policies policies;
};

inline std::vector<Changed> each_policy_changed() {
  std::vector<Changed> all;
#define SHARD_ROW(member, Type, initial, use)        \
  all.push_back({#member, PolicyUse::use, {}});      \
  all.back().policies.member = static_cast<Type>(1); \
  static_assert(Type::initial == static_cast<Type>(0));
  SHARD_POLICIES(SHARD_ROW)
#undef SHARD_ROW
  return all;
}

}  // namespace shard::test
