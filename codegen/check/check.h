// Checks that ops are valid. All findings of a run go to the sink; an op without an error can be
// lowered.
#pragma once

#include <set>
#include <vector>

#include "diag/diagnostics.h"
#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

/// Checks every op alone and all of them together, for code that is generated for `runtime`.
void check_families(const std::vector<Family>& families, const Runtime& runtime, DiagnosticSink& sink);

/// The ops that contain errors, which are left out while others may be generated, and the number of
/// errors outside of any op.
struct RefusedOps {
  std::set<const Op*> ops;
  int elsewhere = 0;
};
RefusedOps refused_ops(const std::vector<Family>& families, const std::vector<Diagnostic>& findings);
/// True when the finding is within the entry of that op.
bool stands_in(const Diagnostic& finding, const Op& op);

}  // namespace shardgen
