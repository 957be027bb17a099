// Asks whether what was read is legal: all findings of a run go to the sink. An op without an error can be lowered.
#pragma once

#include <vector>

#include "diag/diagnostics.h"
#include "model/op.h"

namespace shardgen {

/// Checks every op on its own and all of them together.
void check_families(const std::vector<Family>& families, DiagnosticSink& sink);

}  // namespace shardgen
