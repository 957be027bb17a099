// The names of types in op YAML, one table per enum. A new type is added to its enum and to its table.
#include "model/types.h"

#include <array>
#include <utility>

namespace shardgen {
namespace {

template <class Enum, size_t N>
using Table = std::array<std::pair<Enum, std::string_view>, N>;

constexpr Table<AttrType, 18> kAttrTypes = {{
    {AttrType::boolean, "bool"},
    {AttrType::int32, "int"},
    {AttrType::int64, "int64_t"},
    {AttrType::float32, "float"},
    {AttrType::float64, "double"},
    {AttrType::str, "str"},
    {AttrType::dtype, "DataType"},
    {AttrType::place, "Place"},
    {AttrType::scalar, "Scalar"},
    {AttrType::int_array, "IntArray"},
    {AttrType::boolean_list, "bool[]"},
    {AttrType::int32_list, "int[]"},
    {AttrType::int64_list, "int64_t[]"},
    {AttrType::float32_list, "float[]"},
    {AttrType::float64_list, "double[]"},
    {AttrType::str_list, "str[]"},
    {AttrType::scalar_list, "Scalar[]"},
    {AttrType::unknown, ""},
}};

constexpr Table<DataType, 13> kDataTypes = {{
    {DataType::undefined, "UNDEFINED"},
    {DataType::boolean, "BOOL"},
    {DataType::int8, "INT8"},
    {DataType::uint8, "UINT8"},
    {DataType::int16, "INT16"},
    {DataType::int32, "INT32"},
    {DataType::int64, "INT64"},
    {DataType::float16, "FLOAT16"},
    {DataType::bfloat16, "BFLOAT16"},
    {DataType::float32, "FLOAT32"},
    {DataType::float64, "FLOAT64"},
    {DataType::complex64, "COMPLEX64"},
    {DataType::complex128, "COMPLEX128"},
}};

constexpr Table<TensorFormat, 5> kTensorFormats = {{
    {TensorFormat::dense, "dense"},
    {TensorFormat::selected_rows, "selected_rows"},
    {TensorFormat::sparse_coo, "sparse_coo"},
    {TensorFormat::sparse_csr, "sparse_csr"},
    {TensorFormat::unknown, ""},
}};

template <class Enum, size_t N>
std::string_view name_in(const Table<Enum, N>& table, Enum value) {
  return table[static_cast<size_t>(value)].second;
}

template <class Enum, size_t N>
std::optional<Enum> find_in(const Table<Enum, N>& table, std::string_view name) {
  for (const auto& [value, text] : table) {
    if (!text.empty() && text == name) return value;
  }
  return std::nullopt;
}

template <class Enum, size_t N>
std::vector<std::string_view> names_in(const Table<Enum, N>& table) {
  std::vector<std::string_view> names;
  for (const auto& [value, text] : table) {
    if (!text.empty()) names.push_back(text);
  }
  return names;
}

}  // namespace

std::string_view yaml_name(AttrType type) { return name_in(kAttrTypes, type); }
std::string_view yaml_name(DataType type) { return name_in(kDataTypes, type); }
std::string_view yaml_name(TensorFormat format) { return name_in(kTensorFormats, format); }
std::string_view yaml_name(PartialKind kind) { return shard::kCommutationNames[static_cast<size_t>(kind)]; }
std::string_view yaml_name(ReduceKind kind) { return shard::to_string(kind); }

std::optional<AttrType> parse_attr_type(std::string_view name) { return find_in(kAttrTypes, name); }
std::optional<DataType> parse_data_type(std::string_view name) { return find_in(kDataTypes, name); }
std::optional<TensorFormat> parse_tensor_format(std::string_view name) { return find_in(kTensorFormats, name); }
std::optional<PartialKind> parse_partial_kind(std::string_view name) { return shard::find_commutation_kind(name); }
std::optional<ReduceKind> parse_reduce_kind(std::string_view name) { return shard::find_reduce_type(name); }

std::vector<std::string_view> attr_type_names() { return names_in(kAttrTypes); }
std::vector<std::string_view> data_type_names() { return names_in(kDataTypes); }
std::vector<std::string_view> tensor_format_names() { return names_in(kTensorFormats); }
std::vector<std::string_view> partial_kind_names() {
  return {shard::kCommutationNames.begin(), shard::kCommutationNames.end()};
}
std::vector<std::string_view> reduce_kind_names() {
  return {shard::kReduceTypeNames.begin(), shard::kReduceTypeNames.end()};
}

}  // namespace shardgen
