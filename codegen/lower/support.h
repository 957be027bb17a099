// Selects the ops that the runtime supports. The others are left out and counted.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

/// An op that is not generated, and why ("its kernels take sparse tensors").
struct Dropped {
  const Op* op;
  std::string reason;
};

struct Selection {
  /// By family, in the order of the file.
  std::vector<std::vector<const Op*>> ops;
  std::vector<Dropped> dropped;
  /// How often an op was visited to find out whether what it invokes is generated: a measure of the
  /// work, for tests.
  size_t invokes_seen = 0;

  /// The generated op of that name, or null.
  const Op* find(std::string_view name) const;
  /// The op with a body that `op`, or what it invokes, finally calls. Null where that is a C++
  /// function, or where one of the ops in between has tensor arguments and another has none.
  const Op* end_of(const Op& op) const;
  /// The index of the family in which that op is generated, or -1.
  int family_of(std::string_view name) const;
  /// True when `op` gets an in-place form of its own: it has in-place pairs, and no other op has
  /// that name.
  bool has_inplace_form(const Op& op) const;
  /// True when an overload of the op is generated, so that its name alone does not tell the type of its function.
  bool has_overload(const Op& op) const { return overloaded.contains(op.name.text); }
  /// Follows `invoke` of each generated op to its end, for end_of().
  void find_ends();

  struct Place {
    const Op* op = nullptr;
    int family = -1;
  };
  std::unordered_map<std::string_view, Place> places;  // of generated ops, by name
  std::unordered_map<const Op*, const Op*> ends;       // of ops that invoke another
  std::set<std::string_view> overloaded;               // the names of ops that have overloads
};

/// Ops in `refused` have errors and are left out; so are those in `lacking`, for the given reasons.
Selection select_ops(const std::vector<Family>& families, const Runtime& runtime,
                     const std::set<const Op*>& refused = {}, const std::map<const Op*, std::string>& lacking = {});

/// The kernel that takes only dense tensors, or null.
const KernelFunc* dense_kernel(const Op& op);

}  // namespace shardgen
