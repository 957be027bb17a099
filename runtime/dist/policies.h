// What the calls of a rank may do beside computing. They stand in the Rank; PolicyScope (world.h) changes them for a scope.
#pragma once

#include <cstdint>

namespace shard {

/// What happens to views whose input had to move (statement 22 of docs/semantics.md).
enum class ViewPolicy : uint8_t {
  strict,    // writes through them and uses of stale ones throw
  sync,      // stale views are refreshed, writes are written back
  temporary  // view and source simply part
};
/// What an in-place op does when its target's layout is not the one it computes in.
enum class InplacePolicy : uint8_t {
  keep,   // the result is moved back into the target's layout
  error,  // refuse
  adopt   // the target takes the layout of the result, in a new buffer
};
/// What happens before a call communicates.
enum class CommPolicy : uint8_t {
  allow,
  warn,         // tell the log sink
  forbid,       // throw
  forbid_moves  // throw also where a tensor would change its layout without communication, as by a slice
};
/// What happens when an op has no placement rule.
enum class FallbackPolicy : uint8_t { error, replicate };
/// What happens to a plain tensor among the distributed arguments of a call.
enum class PromotionPolicy : uint8_t {
  error,
  replicate,         // it counts as replicated on the mesh of the call: every rank must give the same value
  replicate_checked  // for debugging: ranks exchange a hash of it, and a difference is an error
};

/// What a recorded call saves for its gradient of an argument that it had to move.
enum class SavePolicy : uint8_t {
  original,  // the caller's tensor, which backward moves again
  resharded  // the moved copy: more memory, and nothing sent again
};

/// In which dtype pending sums and averages of bf16 and f16 tensors are sent. Their contributions are held in float32 (see shard_dtype).
enum class SumPolicy : uint8_t {
  float32,  // and rounded once, when the sum is done
  rounded  // each contribution is rounded to the dtype of the tensor first: half the bytes, and an error that grows with the number of ranks
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
