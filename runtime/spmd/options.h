// How rules decide where there is a choice. The defaults are what calls use; other settings reproduce how other libraries decide, as
// docs/sharding.md tells.
#pragma once

#include <cstdint>
#include <vector>

namespace shard::spmd {

struct RuleOptions {
  enum class Conflict : uint8_t {
    by_cost,  // each mesh axis goes where the fewest bytes move
    first,  // an axis goes to the index that shows it first, in the order of the arguments; two axes on one index are an error
    error,  // as first, but an axis on two indices is an error too
    align   // as first, after the visited arguments got one common layout, chosen per axis by the elements that move
  };
  enum class Pending : uint8_t {
    commute,  // pass through where the op commutes with them, else are done first
    resolve,  // are done first
    pass,     // pass through, whatever the op is
    copy      // are done first, and the outputs are pending all the same
  };
  Conflict conflict = Conflict::by_cost;
  // All below counts only where conflict is not by_cost.
  Pending pending = Pending::resolve;
  std::vector<int> visit = {};          // the flat inputs that are looked at, in that order; empty: all
  std::vector<int> visit_outputs = {};  // the flat outputs that are looked at in reverse, in that order; empty: all
  unsigned untouched = 0;               // bit per flat input: it is wanted as it is
  bool keeps_outputs = false;           // in reverse the outputs get what was wanted, whatever the inputs are
  bool whole_claims = false;            // an axis on a dim that has to stay whole is lost to the other dims as well
  bool ones_whole = false;              // dims of size 1 stay whole, also where nothing is broadcast along them
  bool leading_dims =
      false;  // reshapes keep the axes of the first dim of a group alone, and only where they split it evenly
  bool sharded_classes = false;  // cross entropy combines over a sharded class axis

  bool costs() const { return conflict == Conflict::by_cost; }
};

}  // namespace shard::spmd
