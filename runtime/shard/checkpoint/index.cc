#include "shard/checkpoint/index.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
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
Dims dims_of(const Json& list) {
  std::vector<int64_t> values;
  for (const Json& value : list) {
    if (!value.is_number_integer()) fail(ErrorCode::invalid_argument, "{} is no list of integers", list.dump());
    values.push_back(value.get<int64_t>());
  }
  return Dims(std::span<const int64_t>(values));
}

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == to_string(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  fail(ErrorCode::invalid_argument, "unknown dtype '{}'", name);
}

bool is_inside(const ShardBox& box, const Dims& dims) {
  bool inside = box.begin.rank() == dims.rank() && box.dims.rank() == dims.rank();
  for (int d = 0; inside && d < dims.rank(); ++d) {
    inside = box.begin[d] >= 0 && box.dims[d] >= 0 && box.begin[d] <= dims[d] && box.dims[d] <= dims[d] - box.begin[d];
  }
  return inside;
}

SavedTensor read_tensor(const std::string& name, const Json& json) {
  SavedTensor tensor;
  tensor.meta = {dims_of(json.at("shape")), dtype_named(json.at("dtype").get<std::string>())};
  checked_bytes(tensor.meta);
  for (const Json& json_piece : json.at("pieces")) {
    const Piece piece{json_piece.at("file").get<std::string>(),
                      {dims_of(json_piece.at("begin")), dims_of(json_piece.at("shape"))}};
    if (save_of(piece.file) == 0)
      fail(ErrorCode::invalid_argument, "'{}' is in '{}', which is no name of a data file", name, piece.file);
    if (!is_inside(piece.box, tensor.meta.dims))
      fail(ErrorCode::invalid_argument, "a piece of '{}' is outside of {}", name, to_string(tensor.meta.dims));
    tensor.pieces.push_back(piece);
  }
  return tensor;
}

}  // namespace

std::string data_file(uint64_t save, int rank) { return fmt::format("{:06}.rank{}.safetensors", save, rank); }

uint64_t save_of(const std::string& file) {
  uint64_t save = 0;
  int rank = 0;
  const char* const end = file.data() + file.size();
  const std::from_chars_result number = std::from_chars(file.data(), end, save);
  const std::string_view part = ".rank";
  if (number.ec != std::errc() || !std::string_view(number.ptr, end).starts_with(part)) return 0;
  std::from_chars(number.ptr + part.size(), end, rank);
  return file == data_file(save, rank) ? save : 0;
}

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
    if (json.at("format") != "shardgen checkpoint" || json.at("version") != kVersion) {
      fail(ErrorCode::invalid_argument,
           "expected version {} of the format 'shardgen checkpoint', and it is version {} of {}", kVersion,
           json.at("version").dump(), json.at("format").dump());
    }
    SavedTensors index;
    for (const auto& [name, tensor] : json.at("tensors").items()) index[name] = read_tensor(name, tensor);
    return index;
  } catch (const std::exception& error) {
    fail(ErrorCode::invalid_argument, "[{}] '{}' is no index of a checkpoint: {}", op, path, error.what());
  }
}

}  // namespace shard::checkpoint
