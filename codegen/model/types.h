// The types that op YAML can name, as enums. Their C++ spellings are in lower/spelling.cc and nowhere else.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "shard/core/axis_expr.h"

namespace shardgen {

enum class AttrType {
  boolean,
  int32,
  int64,
  float32,
  float64,
  str,
  dtype,
  place,
  scalar,
  int_array,
  boolean_list,
  int32_list,
  int64_list,
  float32_list,
  float64_list,
  str_list,
  scalar_list,
  unknown,  // a type that the tool does not know; the attribute has its text
};

enum class DataType {
  undefined,
  boolean,
  int8,
  uint8,
  int16,
  int32,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
};

enum class TensorFormat { dense, selected_rows, sparse_coo, sparse_csr, unknown };

// Tool and runtime share the language of rules, so these types are the runtime's.
using shard::AxisExpr;
using shard::AxisProblem;
/// How an op commutes with a pending reduction.
using Partial = shard::Commutation;
using PartialKind = shard::Commutation::Kind;
using ReduceKind = shard::ReduceType;

/// "int64_t[]", "DataType", ...
std::string_view yaml_name(AttrType type);
/// "FLOAT32", ...
std::string_view yaml_name(DataType type);
/// "dense", ...
std::string_view yaml_name(TensorFormat format);
/// "linear", ...
std::string_view yaml_name(PartialKind kind);
/// "sum", ...
std::string_view yaml_name(ReduceKind kind);

std::optional<AttrType> parse_attr_type(std::string_view name);
std::optional<DataType> parse_data_type(std::string_view name);
std::optional<TensorFormat> parse_tensor_format(std::string_view name);
std::optional<PartialKind> parse_partial_kind(std::string_view name);
std::optional<ReduceKind> parse_reduce_kind(std::string_view name);

/// Every name of that kind, for "did you mean".
std::vector<std::string_view> attr_type_names();
std::vector<std::string_view> data_type_names();
std::vector<std::string_view> tensor_format_names();
std::vector<std::string_view> partial_kind_names();
std::vector<std::string_view> reduce_kind_names();

}  // namespace shardgen
