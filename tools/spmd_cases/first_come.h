// The solver of the peer from which cases were recorded. It assigns mesh axes in the order in which
// layouts use them, without costs.
#pragma once

#include <vector>

#include "shard/spmd/notation.h"

namespace spmd_cases {

/// How the peer decides in one rule. The defaults are its standard behaviour.
struct PeerOptions {
  enum class Conflict : uint8_t {
    // An axis goes to the first index that uses it, in the order of the arguments. Two axes on one
    // index are an error.
    first,
    error,  // as first, but an axis on two indices is also an error
    // As first, after the visited arguments got a common layout, chosen per axis by the number of
    // elements that move.
    align
  };
  enum class Pending : uint8_t {
    resolve,  // pending reductions are done first
    pass,     // they pass through, whatever the op is
    copy      // they are done first, and the outputs are pending nevertheless
  };
  Conflict conflict = Conflict::first;
  Pending pending = Pending::resolve;
  std::vector<int> visit = {};          // the flat inputs to visit, in that order; empty: all
  std::vector<int> visit_outputs = {};  // the flat outputs to visit in reverse, in that order; empty: all
  unsigned untouched = 0;               // one bit per flat input: its layout is kept
  bool keeps_outputs = false;           // in reverse the outputs get the wanted layouts, whatever the inputs are
  // An axis on a dim that has to stay whole cannot be used for the other dims either.
  bool whole_claims = false;
  bool ones_whole = false;  // dims of size 1 stay whole, even if nothing is broadcast along them
};

class FirstComeSolver final : public shard::spmd::LayoutSolver {
 public:
  explicit FirstComeSolver(PeerOptions options) : options_(std::move(options)) {}

  shard::spmd::RuleResult solve(const shard::spmd::RuleArgs& args,
                                const shard::spmd::Notation& notation) const override;
  const PeerOptions& options() const { return options_; }

 private:
  PeerOptions options_;
};

/// True if a rule is called like the peer would call it: with a FirstComeSolver.
inline bool is_peer(const shard::spmd::RuleArgs& args) { return args.solver != nullptr; }
/// The options of that solver.
inline const PeerOptions& peer_options(const shard::spmd::RuleArgs& args) {
  return static_cast<const FirstComeSolver*>(args.solver)->options();
}

/// The axes of the letters in one call of the peer. Visit layouts, settle once, then query layouts.
class FirstCome {
 public:
  FirstCome(const shard::spmd::RuleArgs& args, const shard::spmd::Notation& notation);

  /// Assigns the axes that `layout` has on dims to their letters, for letters that may be sharded.
  /// Throws layout if a letter gets a second axis.
  void visit(const shard::Layout& layout, const std::vector<int>& letters);
  /// Leaves an axis that several letters have to the first of them. Throws layout if the options
  /// make that an error.
  void settle();

  shard::Layout layout(const std::vector<int>& letters) const;
  /// The layout of a flat output. It is pending over the axes of reduced letters that it lacks.
  shard::Layout output(size_t o) const;

 private:
  bool is_whole(int letter) const;

  const PeerOptions& options_;
  const shard::spmd::RuleArgs& args_;
  const shard::spmd::Notation& notation_;
  std::vector<int> axis_;                  // the axis of each letter, or -1
  std::vector<std::vector<int>> letters_;  // for each axis, its letters in the order in which they used it
};

}  // namespace spmd_cases
