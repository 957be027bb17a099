// Policies of a rank: what its calls may do besides computing. They are members of the Rank;
// PolicyScope (world.h) changes them for a scope.
#pragma once

#include <cstdint>

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
  warn,         // send a message to the log sink
  forbid,       // throw
  forbid_moves  // throw also where a tensor would change its layout without communication, for example by a slice
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

struct Policies {
  ViewPolicy view = ViewPolicy::strict;
  InplacePolicy inplace = InplacePolicy::keep;
  CommPolicy comm = CommPolicy::allow;
  FallbackPolicy fallback = FallbackPolicy::error;
  PromotionPolicy promotion = PromotionPolicy::error;
  SavePolicy save = SavePolicy::original;
  SumPolicy sums = SumPolicy::float32;
};

}  // namespace shard
