// checkpoint.json: which tensors a checkpoint has, and which file holds which box of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shard/core/op_context.h"

namespace shard::checkpoint {

/// A box of a tensor in a file, where it has the name of the tensor.
struct Piece {
  std::string file;
  ShardBox box;
};

struct SavedTensor {
  Meta meta;
  std::vector<Piece>
      pieces;  // boxes in the tensor; in an index that save_checkpoint has written each element is in one
};

using SavedTensors = std::map<std::string, SavedTensor>;

/// The name of the file that a rank writes in a save: "000001.rank0.safetensors".
std::string data_file(uint64_t save, int rank);
/// The number of the save that wrote a data file; 0 for other files.
uint64_t save_of(const std::string& file);

/// The text of checkpoint.json. Throws invalid_argument for a name that is not UTF-8.
std::string to_json(const SavedTensors& index);
/// Reads `folder`/checkpoint.json. Throws invalid_argument where there is none, or one that is not whole; `op` is for
/// messages.
SavedTensors read_index(const char* op, const std::string& folder);
/// The path of the index in a folder.
std::string index_path(const std::string& folder);

}  // namespace shard::checkpoint
