// The solver of the peer that cases were recorded from: it assigns mesh axes in the order in which layouts show them, without costs.
#pragma once

#include <vector>

#include "spmd/notation.h"

namespace spmd_cases {

/// How the peer decides in one rule. The defaults are its standard.
struct PeerOptions {
  enum class Conflict : uint8_t {
    first,  // an axis goes to the index that shows it first, in the order of the arguments; two axes on one index are an error
    error,  // as first, but an axis on two indices is an error too
    align   // as first, after the visited arguments got one common layout, chosen per axis by the elements that move
  };
  enum class Pending : uint8_t {
    resolve,  // pending reductions are done first
    pass,     // pass through, whatever the op is
    copy      // are done first, and the outputs are pending all the same
  };
  Conflict conflict = Conflict::first;
  Pending pending = Pending::resolve;
  std::vector<int> visit = {};          // the flat inputs that are looked at, in that order; empty: all
  std::vector<int> visit_outputs = {};  // the flat outputs that are looked at in reverse, in that order; empty: all
  unsigned untouched = 0;               // bit per flat input: it is wanted as it is
  bool keeps_outputs = false;           // in reverse the outputs get what was wanted, whatever the inputs are
  bool whole_claims = false;            // an axis on a dim that has to stay whole is lost to the other dims as well
  bool ones_whole = false;              // dims of size 1 stay whole, also where nothing is broadcast along them
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

/// True where a rule is called as the peer would call it: with a FirstComeSolver.
inline bool is_peer(const shard::spmd::RuleArgs& args) { return args.solver != nullptr; }
/// The options of that solver.
inline const PeerOptions& peer_options(const shard::spmd::RuleArgs& args) {
  return static_cast<const FirstComeSolver*>(args.solver)->options();
}

/// The axes of the letters of one call of the peer. Visit layouts, settle once, then ask for layouts.
class FirstCome {
 public:
  FirstCome(const shard::spmd::RuleArgs& args, const shard::spmd::Notation& notation);

  /// Takes the axes that `layout` has on dims with a letter that may be sharded. Throws layout when a letter gets a second axis.
  void visit(const shard::Layout& layout, const std::vector<int>& letters);
  /// An axis that several letters have stays with the first. Throws layout where the options make that an error.
  void settle();

  shard::Layout layout(const std::vector<int>& letters) const;
  /// The layout of a flat output: pending over the axes of reduced letters that it lacks.
  shard::Layout output(size_t o) const;

 private:
  bool is_whole(int letter) const;

  const PeerOptions& options_;
  const shard::spmd::RuleArgs& args_;
  const shard::spmd::Notation& notation_;
  std::vector<int> axis_;                  // per letter, or -1
  std::vector<std::vector<int>> letters_;  // per axis, in the order in which they showed it
};

}  // namespace spmd_cases
