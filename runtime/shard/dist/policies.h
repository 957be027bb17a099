// Policies of a rank: what its calls may do besides computing. They are members of the Rank;
// PolicyScope (world.h) changes them for a scope. A new policy is an enum and a row of the table below.
#pragma once

#include <cstdint>

#include "shard/core/algorithm_policy.h"

namespace shard {

/// What happens to views whose input was resharded (statement 22 of docs/semantics.md).
enum class ViewPolicy : uint8_t {
  strict,    // writes through them and uses of stale ones throw
  sync,      // stale views are refreshed, writes are written back
  temporary  // view and source are independent of each other
};
/// What an in-place op does when its target's layout is not the one in which it computes.
enum class InplacePolicy : uint8_t {
  keep,   // the result is resharded back into the target's layout
  error,  // refuse
  adopt   // the target takes the layout of the result, in a new buffer
};
/// What happens before a call communicates.
enum class CommPolicy : uint8_t {
  allow,
  warn,            // send a message to the log sink
  forbid,          // throw
  forbid_reshards  // throw also where a tensor would change its layout without communication, for example by a slice
};
/// What happens when an op has no placement rule.
enum class FallbackPolicy : uint8_t { error, replicate };
/// What happens to a plain tensor among the distributed arguments of a call.
enum class PromotionPolicy : uint8_t {
  error,
  replicate,         // it counts as replicated on the mesh of the call: every rank must pass the same value
  replicate_checked  // for debugging: ranks exchange a hash of it, and a difference is an error
};

/// What a recorded call saves for its gradient of an argument that it had to reshard.
enum class SavePolicy : uint8_t {
  original,  // the caller's tensor, which backward reshards again
  resharded  // the resharded copy: more memory, but nothing is sent again
};

/// The dtype in which pending sums and averages of bf16 and f16 tensors are sent. Their
/// contributions are held in float32 (see shard_dtype).
enum class SumPolicy : uint8_t {
  float32,  // and rounded once, when the sum is done
  // each contribution is rounded to the dtype of the tensor first: half the bytes, and an error
  // that grows with the number of ranks
  rounded
};

/// Whether the plan of a call on a mesh depends on a policy, or each call asks for it.
enum class PolicyUse : uint8_t { plan, call };

/// One row per policy: its member of Policies, its type, the default, its use.
#define SHARD_POLICIES(ROW)                    \
  ROW(view, ViewPolicy, strict, plan)          \
  ROW(inplace, InplacePolicy, keep, plan)      \
  ROW(comm, CommPolicy, allow, call)           \
  ROW(fallback, FallbackPolicy, error, plan)   \
  ROW(promotion, PromotionPolicy, error, call) \
  ROW(save, SavePolicy, original, call)        \
  ROW(sums, SumPolicy, float32, plan)          \
  ROW(algorithms, AlgorithmPolicy, deterministic, call)

struct Policies {
#define SHARD_ROW(member, Type, initial, ...) Type member = Type::initial;
  SHARD_POLICIES(SHARD_ROW)
#undef SHARD_ROW
};

/// Calls f(value, use) for each policy.
template <class F>
constexpr void for_policies(const Policies& policies, F f) {
#define SHARD_ROW(member, Type, initial, use) f(policies.member, PolicyUse::use);
  SHARD_POLICIES(SHARD_ROW)
#undef SHARD_ROW
}

static_assert(sizeof(Policies) <= 8);  // key_of is one word

/// All policies in one word, for keys of what depends on them.
constexpr uint64_t key_of(const Policies& policies) {
  uint64_t key = 0;
  for_policies(policies, [&](auto value, PolicyUse) { key = key << 8 | static_cast<uint64_t>(value); });
  return key;
}
/// The policies that plans depend on in one word, of which a byte is left for other parts of a key.
constexpr uint64_t plan_key_of(const Policies& policies) {
  uint64_t key = 0;
  for_policies(policies, [&](auto value, PolicyUse use) {
    if (use == PolicyUse::plan) key = key << 8 | static_cast<uint64_t>(value);
  });
  return key;
}
static_assert([] {
  int plans = 0;
  for_policies({}, [&](auto, PolicyUse use) { plans += use == PolicyUse::plan ? 1 : 0; });
  return plans;
}() <= 7);

}  // namespace shard
