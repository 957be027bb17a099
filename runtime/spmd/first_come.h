// Assigns mesh axes to letters without costs, in the order in which layouts have them. For
// RuleOptions other than the default.
#pragma once

#include <vector>

#include "spmd/notation.h"

namespace shard::spmd {

/// The axes of the letters of one call. Usage: visit layouts, settle once, then query layouts.
class FirstCome {
 public:
  FirstCome(const RuleArgs& args, const Notation& notation);

  /// Assigns the axes that `layout` has on dims with a letter that may be sharded. Throws layout
  /// when a letter gets a second axis.
  void visit(const Layout& layout, const std::vector<int>& letters);
  /// An axis that several letters have stays with the first. Throws layout where the options make
  /// that an error.
  void settle();

  Layout layout(const std::vector<int>& letters) const;
  /// The layout of a flat output: pending over the axes of reduced letters that it lacks.
  Layout output(size_t o) const;

 private:
  bool is_whole(int letter) const;

  const RuleArgs& args_;
  const Notation& notation_;
  std::vector<int> axis_;                  // per letter, or -1
  std::vector<std::vector<int>> letters_;  // for each axis, in the order in which they got it
};

/// solve() and solve_reverse() for options that do not ask for costs.
RuleResult solve_first_come(const RuleArgs& args, const Notation& notation);

}  // namespace shard::spmd
