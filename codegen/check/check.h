// Asks whether what was read is legal: all findings of a run go to the sink. An op without an error can be lowered.
#pragma once

#include <set>
#include <vector>

#include "diag/diagnostics.h"
#include "lower/runtime.h"
#include "model/op.h"

namespace shardgen {

/// Checks every op on its own and all of them together, for code that is written for `runtime`.
void check_families(const std::vector<Family>& families, const Runtime& runtime, DiagnosticSink& sink);

/// The ops that errors stand in, which are left out while others may be generated, and the number of errors that stand in no op.
struct RefusedOps {
  std::set<const Op*> ops;
  int elsewhere = 0;
};
RefusedOps refused_ops(const std::vector<Family>& families, const std::vector<Diagnostic>& findings);
/// True when the finding stands in the entry of that op.
bool stands_in(const Diagnostic& finding, const Op& op);

}  // namespace shardgen
