// Options that determine how rules decide. The defaults are what calls use; other settings
// reproduce the decisions of other libraries (docs/sharding.md).
#pragma once

#include <cstdint>
#include <vector>

namespace shard::spmd {

struct RuleOptions {
  enum class Conflict : uint8_t {
    by_cost,  // each mesh axis is assigned so that the fewest bytes are sent
    // an axis is assigned to the index that first has it, in the order of the arguments; two axes
    // on one index are an error
    first,
    error,  // as first, but an axis on two indices is an error too
    // as first, after the visited arguments got one common layout, chosen for each axis by the
    // elements that are sent
    align
  };
  enum class Pending : uint8_t {
    commute,  // pass through where the op commutes with them, and are done first otherwise
    resolve,  // are done first
    pass,     // pass through, whatever the op
    copy      // are done first, but the outputs are pending nevertheless
  };
  Conflict conflict = Conflict::by_cost;
  // The options below apply only where conflict is not by_cost.
  Pending pending = Pending::resolve;
  std::vector<int> visit = {};  // the flat inputs that are considered, in that order; empty: all
  // the flat outputs that are considered in reverse, in that order; empty: all
  std::vector<int> visit_outputs = {};
  unsigned untouched = 0;      // bit per flat input: it keeps its layout
  bool keeps_outputs = false;  // in reverse the outputs get the wanted layouts, whatever the inputs are
  bool whole_claims = false;   // an axis on a dim that must not be sharded is lost to the other dims as well
  bool ones_whole = false;     // dims of size 1 are not sharded, even where nothing is broadcast along them
  // reshapes keep only the axes of the first dim of a group, and only where they split it evenly
  bool leading_dims = false;
  bool sharded_classes = false;  // cross entropy combines over a sharded class axis

  bool costs() const { return conflict == Conflict::by_cost; }
};

}  // namespace shard::spmd
