// The tables of keys: where each key is allowed, the kind of its value, and a line of
// documentation. The reader uses the same tables (read_op.cc), so a schema made from them cannot
// differ from it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace shardgen {

/// The kinds of maps in op YAML.
enum class Block { op, infer_meta, kernel, data_transform, shard };

/// The languages in which values are written.
enum class ValueKind {
  name,
  qualified_name,
  names,  // `a, b` or `[a, b]`
  qualified_names,
  passed,  // like names, but also constants and `x.dtype()`
  boolean,
  text,
  arguments,
  outputs,
  pairs,
  kernels,
  dispatch,
  call,
  forward,
  partial,
  conditions,  // a map from arguments to conditions
  numbers,     // a map from arguments to numbers
  traits,
  infer_meta_block,
  kernel_block,
  data_transform_block,
  shard_block,
};

struct KeyInfo {
  std::string_view key;
  ValueKind kind;
  std::string_view about;
};

/// The keys of a block, in the order of its table.
std::vector<KeyInfo> keys_of(Block block);
/// The block that is a value of that kind, or nothing.
std::optional<Block> block_of(ValueKind kind);

}  // namespace shardgen
