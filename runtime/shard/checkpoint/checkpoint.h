// Checkpoints: tensors in a folder, saved from any layout and loaded into any other.
#pragma once

#include <map>
#include <string>

#include "shard/core/export.h"
#include "shard/core/tensor.h"

namespace shard {

/// Saves tensors under their names in `folder`, which is made where it is missing. Each rank writes its local shards into
/// one file of the safetensors format, of equal shards one rank alone; pending reductions are carried out before. The
/// file checkpoint.json says which box of which tensor is in which file. It is replaced last, so that the folder holds the
/// checkpoint before or the new one, whole, whenever the program is stopped; what the one before had is then removed.
/// Plain tensors must be the same on all ranks, and are written by rank 0.
///
/// In a world all ranks call it with the same names, in one file system. Where a rank cannot write, all ranks throw, and
/// may go on. Throws invalid_argument for a name that is empty, "__metadata__" or not UTF-8, and for what cannot be
/// written; communication where the ranks' tensors differ in name, shape, dtype or layout; wrong_rank for a tensor of
/// another rank; no_data in a dry world; capture while a function is captured; invalid_argument while others save to the
/// folder, whom a lock of rank 0 (flock) tells from it where the file system has locks.
SHARD_API void save_checkpoint(const std::string& folder, const std::map<std::string, Tensor>& tensors);

/// Overwrites tensors with those of the same names in the checkpoint, which may have more. A tensor may have any layout on
/// any mesh, be plain, and be on any device; each rank reads only what its local shards need. Nothing is recorded for
/// autograd, and versions count the write.
///
/// In a world all ranks call it; which tensors a rank passes matters only to the ranks of their meshes. Before the first
/// tensor is written all are checked, and where a rank cannot load one, all ranks throw: invalid_argument for names that
/// the checkpoint lacks and for files that are missing, damaged or no checkpoint, shape_mismatch, dtype_mismatch,
/// wrong_rank, capture, and what a write to the tensor would throw.
SHARD_API void load_checkpoint(const std::string& folder, const std::map<std::string, Tensor>& tensors);

/// The shapes and dtypes of the tensors in a checkpoint, by name. Throws invalid_argument for a folder without one.
SHARD_API std::map<std::string, Meta> checkpoint_tensors(const std::string& folder);

}  // namespace shard
