// Reads one entry of an op YAML file into the model.
#pragma once

#include <optional>

#include "model/op.h"
#include "read/keys.h"

namespace shardgen {

/// The op of that entry, or nothing when it has no name. Everything wrong with it is reported.
std::optional<Op> read_op(const ReadContext& context, const YamlNode& entry);

/// What an overlay says of an op.
struct OverlayEntry {
  Name name;
  InferMeta infer_meta;  // spmd_rule, local_shape and global_shape only
  Extension extension;
};
std::optional<OverlayEntry> read_overlay_entry(const ReadContext& context, const YamlNode& entry);

}  // namespace shardgen
