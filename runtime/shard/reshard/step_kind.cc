#include "shard/reshard/step_kind.h"

namespace shard {

using Kind = ReshardStep::Kind;

Kind kind_of_move(const Layout& from, const Layout& to, AxisList& axes) {
  bool prefixes = true;  // the new lists are prefixes of the old ones
  bool same_counts = true;
  bool last_only = true;  // no list lost more than its last axis, and none gained more than one
  for (int d = 0; d < from.rank; ++d) {
    const AxisList& a = from.dims[static_cast<size_t>(d)];
    const AxisList& b = to.dims[static_cast<size_t>(d)];
    int common = 0;
    while (common < a.size() && common < b.size() && a[common] == b[common]) ++common;
    for (int i = common; i < a.size(); ++i) axes.push_back(a[i]);
    int64_t shards = 1;
    int64_t shards_after = 1;
    for (int i = common; i < a.size(); ++i) shards *= from.mesh->size(a[i]);
    for (int i = common; i < b.size(); ++i) shards_after *= from.mesh->size(b[i]);
    prefixes = prefixes && common == b.size();
    same_counts = same_counts && shards == shards_after;
    last_only =
        last_only && common + 1 >= a.size() && common + 1 >= b.size() && (common == a.size() || common == b.size());
  }
  if (from == to) return Kind::copy;
  if (axes.empty()) return Kind::slice;
  if (prefixes) return Kind::all_gather;
  if (same_counts) return Kind::permute;
  int arrived = 0;
  for (int d = 0; d < from.rank; ++d) {
    const AxisList& b = to.dims[static_cast<size_t>(d)];
    for (int i = 0; i < b.size(); ++i) arrived += from.dims[static_cast<size_t>(d)].contains(b[i]) ? 0 : 1;
  }
  if (last_only && axes.size() == 1 && arrived == 1 && to.dim_of(axes[0]) >= 0) return Kind::all_to_all;
  return Kind::exchange;
}

}  // namespace shard
