// Overlays: files that add placement rules and `shard:` blocks to ops of files that stay unchanged.
#pragma once

#include <string>
#include <vector>

#include "diag/diagnostics.h"
#include "model/op.h"

namespace shardgen {

/// Reads an overlay, a list of entries `- op : name` with `infer_meta: {spmd_rule, local_shape,
/// global_shape}` and `shard:`, and applies each entry to the ops of that name. It replaces what an
/// op already has. An entry for an unknown op, or a second entry for an op, is an error; an entry
/// without effect is a warning. The checks run on the result, so a rule is checked as in the op's
/// own file, and reported at its position in the overlay.
void apply_overlay(const std::string& path, std::string bytes, std::vector<Family>& families, DiagnosticSink& sink);

}  // namespace shardgen
