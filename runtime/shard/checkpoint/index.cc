#include "shard/checkpoint/index.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shard/core/error.h"

namespace shard::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

std::vector<int64_t> list_of(const Dims& dims) { return {dims.begin(), dims.end()}; }
Dims dims_of(const Json& list) { return Dims(std::span<const int64_t>(list.get<std::vector<int64_t>>())); }

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == to_string(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  fail(ErrorCode::invalid_argument, "unknown dtype '{}'", name);
}

/// Throws unless the pieces are boxes in the tensor with as many elements as it has.
void check_pieces(const std::string& name, const SavedTensor& tensor) {
  const Dims& dims = tensor.meta.dims;
  int64_t elements = 0;
  for (const Piece& piece : tensor.pieces) {
    bool inside = piece.box.begin.rank() == dims.rank() && piece.box.dims.rank() == dims.rank();
    for (int d = 0; inside && d < dims.rank(); ++d) {
      inside = piece.box.begin[d] >= 0 && piece.box.dims[d] >= 0 && piece.box.begin[d] <= dims[d] &&
               piece.box.dims[d] <= dims[d] - piece.box.begin[d];
    }
    if (!inside) fail(ErrorCode::invalid_argument, "a piece of '{}' is outside of {}", name, to_string(dims));
    elements += piece.box.dims.numel();
  }
  if (elements != dims.numel())
    fail(ErrorCode::invalid_argument, "the pieces of '{}' have {} of {} elements", name, elements, dims.numel());
}

SavedTensor read_tensor(const std::string& name, const Json& json) {
  SavedTensor tensor;
  tensor.meta = {dims_of(json.at("shape")), dtype_named(json.at("dtype").get<std::string>())};
  checked_bytes(tensor.meta);
  for (const Json& piece : json.at("pieces")) {
    const auto file = piece.at("file").get<std::string>();
    if (std::filesystem::path(file).filename() != file)
      fail(ErrorCode::invalid_argument, "'{}' is in '{}', which is no name of a file", name, file);
    tensor.pieces.push_back({file, {dims_of(piece.at("begin")), dims_of(piece.at("shape"))}});
  }
  check_pieces(name, tensor);
  return tensor;
}

}  // namespace

std::string to_json(const SavedTensors& index) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : index) {
    Json pieces = Json::array();
    for (const Piece& piece : tensor.pieces)
      pieces.push_back({{"file", piece.file}, {"begin", list_of(piece.box.begin)}, {"shape", list_of(piece.box.dims)}});
    tensors[name] = {
        {"dtype", to_string(tensor.meta.dtype)}, {"shape", list_of(tensor.meta.dims)}, {"pieces", std::move(pieces)}};
  }
  try {
    return Json{{"format", "shardgen checkpoint"}, {"version", kVersion}, {"tensors", std::move(tensors)}}.dump(1) +
           "\n";
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::invalid_argument, "[save_checkpoint] the name of a tensor is not UTF-8");
  }
}

std::string index_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "checkpoint.json").string();
}

SavedTensors read_index(const char* op, const std::string& folder) {
  const std::string path = index_path(folder);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail(ErrorCode::invalid_argument, "[{}] cannot read '{}': {}; it is written by save_checkpoint", op, path,
         std::strerror(errno));
  }
  try {
    const Json json = Json::parse(file);
    const int version = json.at("version").get<int>();
    if (json.at("format") != "shardgen checkpoint" || version != kVersion) {
      fail(ErrorCode::invalid_argument,
           "expected version {} of the format 'shardgen checkpoint', and it is version {} of {}", kVersion, version,
           json.at("format").dump());
    }
    SavedTensors index;
    for (const auto& [name, tensor] : json.at("tensors").items()) index[name] = read_tensor(name, tensor);
    return index;
  } catch (const std::exception& error) {
    fail(ErrorCode::invalid_argument, "[{}] '{}' is no index of a checkpoint: {}", op, path, error.what());
  }
}

}  // namespace shard::checkpoint
