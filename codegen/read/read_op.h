// Reads one entry of an op YAML file into the model.
#pragma once

#include <optional>

#include "model/op.h"
#include "read/keys.h"

namespace shardgen {

/// The op of that entry, or nothing when it has no name. Reports everything that is wrong with it.
std::optional<Op> read_op(const ReadContext& context, const YamlNode& entry);

/// An entry of an overlay for an op.
struct OverlayEntry {
  Name name;
  InferMeta infer_meta;  // spmd_rule, local_shape and global_shape only
  Extension extension;
};
std::optional<OverlayEntry> read_overlay_entry(const ReadContext& context, const YamlNode& entry);

}  // namespace shardgen
