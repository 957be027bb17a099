// Overlays: files that add placement rules and `shard:` blocks to ops of files that stay as they are.
#pragma once

#include <string>
#include <vector>

#include "diag/diagnostics.h"
#include "model/op.h"

namespace shardgen {

/// Reads an overlay, a list of entries `- op : name` with `infer_meta: {spmd_rule, local_shape, global_shape}` and `shard:`, and puts
/// what it says into the ops of that name; what an op has already is replaced. An entry for no op, or a second one for an op, is an
/// error; one without effect is a warning. The checks see the result, so that a rule is checked as in the op's own file and reported where it stands.
void apply_overlay(const std::string& path, std::string bytes, std::vector<Family>& families, DiagnosticSink& sink);

}  // namespace shardgen
