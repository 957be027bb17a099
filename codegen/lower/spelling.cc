// C++ types and constants, in symbols of the runtime.
#include "lower/spelling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "lower/runtime.h"

namespace shardgen {
namespace {

bool is_empty_list(const Literal& literal) {
  const auto* items = std::get_if<LiteralList>(&literal.value);
  return items != nullptr && items->empty();
}

std::string base_type(AttrType type) {
  switch (type) {
    case AttrType::dtype: return rt("DType");
    case AttrType::place: return rt("Device");
    case AttrType::scalar: return rt("Scalar");
    case AttrType::int_array: return rt("IntArray");
    case AttrType::boolean:
    case AttrType::int32:
    case AttrType::int64:
    case AttrType::float32:
    case AttrType::float64:
    case AttrType::str:
    case AttrType::boolean_list:
    case AttrType::int32_list:
    case AttrType::int64_list:
    case AttrType::float32_list:
    case AttrType::float64_list:
    case AttrType::str_list:
    case AttrType::scalar_list: return rt("type::" + std::string(yaml_name(type)));
    case AttrType::unknown: return "";  // such an op is not generated
  }
  return "";
}

bool by_value(AttrType type) {
  switch (type) {
    case AttrType::boolean:
    case AttrType::int32:
    case AttrType::int64:
    case AttrType::float32:
    case AttrType::float64:
    case AttrType::dtype:
    case AttrType::place:
    case AttrType::unknown: return true;
    case AttrType::str:
    case AttrType::scalar:
    case AttrType::int_array:
    case AttrType::boolean_list:
    case AttrType::int32_list:
    case AttrType::int64_list:
    case AttrType::float32_list:
    case AttrType::float64_list:
    case AttrType::str_list:
    case AttrType::scalar_list: return false;
  }
  return false;
}

std::string integer(int64_t value) {
  if (value == std::numeric_limits<int64_t>::max()) return "INT64_MAX";
  if (value == std::numeric_limits<int64_t>::min()) return "INT64_MIN";
  return fmt::format("{}", value);
}

std::string floating(FloatValue value) {
  std::string text = fmt::format("{}", value.value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return value.single ? text + "f" : text;
}

struct LiteralSpeller {
  std::optional<std::string> operator()(bool value) const { return value ? "true" : "false"; }
  std::optional<std::string> operator()(int64_t value) const { return integer(value); }
  std::optional<std::string> operator()(FloatValue value) const { return floating(value); }
  std::optional<std::string> operator()(const std::string& value) const { return "\"" + value + "\""; }
  std::optional<std::string> operator()(DataType value) const { return data_type(value); }
  std::optional<std::string> operator()(PlaceValue) const { return rt("kCpu"); }
  std::optional<std::string> operator()(const Opaque&) const { return std::nullopt; }
  std::optional<std::string> operator()(const LiteralList& items) const {
    std::vector<std::string> texts;
    for (const Literal& item : items) {
      std::optional<std::string> text = spell(item);
      if (!text) return std::nullopt;
      texts.push_back(std::move(*text));
    }
    return fmt::format("{{{}}}", fmt::join(texts, ", "));
  }
};

}  // namespace

std::optional<std::string> spell(const Literal& literal) { return std::visit(LiteralSpeller{}, literal.value); }

std::string list_of(const std::string& type) { return rt("list", type); }

bool may_be_open(const Op& op, const Attr& attr) {
  if (!attr.default_value) return false;
  if (attr.type == AttrType::dtype) {
    const auto* type = std::get_if<DataType>(&attr.default_value->value);
    return type != nullptr && *type == DataType::undefined;
  }
  return attr.type == AttrType::place && is_empty_list(*attr.default_value) && op.kernel &&
         op.kernel->backend.candidates.size() > 1;
}

std::string input_type(const Input& input, Role role, bool written) {
  switch (role) {
    case Role::api:
      if (input.list) return (written ? "" : "const ") + (list_of(rt("Tensor")) + "&");
      return (written ? "" : "const ") + rt("Tensor") + "&";
    case Role::dense:
    case Role::kernel:
      if (input.list) return written ? rt("call::Targets") : rt("span", rt("DenseTensor"));
      return (written ? "" : "const ") + rt("DenseTensor") + "&";
  }
  return "";
}

std::string attr_value_type(const Op& op, const Attr& attr) {
  const std::string base = base_type(attr.type);
  return may_be_open(op, attr) ? rt("optional", base) : base;
}

std::string attr_type(const Op& op, const Attr& attr) {
  const std::string type = attr_value_type(op, attr);
  return by_value(attr.type) || may_be_open(op, attr) ? type : "const " + type + "&";
}

std::string output_type(const Output& output, Role role) {
  switch (role) {
    case Role::api: return output.list ? list_of(rt("Tensor")) : rt("Tensor");
    case Role::dense: return output.list ? list_of(rt("DenseTensor")) : rt("DenseTensor");
    case Role::kernel: return output.list ? rt("mutable_span", rt("DenseTensor")) : rt("DenseTensor") + "&";
  }
  return "";
}

std::string tuple_of(const std::vector<std::string>& types) {
  if (types.empty()) return "void";
  if (types.size() == 1) return types[0];
  return rt("tuple", fmt::format("{}", fmt::join(types, ", ")));
}

std::string meta_input_type(const Input& input, bool optional) {
  if (input.list) return rt("span", rt("Meta"));
  return optional ? rt("optional_meta", rt("Meta")) : "const " + rt("Meta") + "&";
}

std::string meta_type(const Output& output) { return output.list ? list_of(rt("Meta")) : rt("Meta"); }

std::optional<std::string> constant(const Op& target, const Attr& parameter, const Literal& literal) {
  if (may_be_open(target, parameter)) {
    const auto* type = std::get_if<DataType>(&literal.value);
    if (is_empty_list(literal) || (type != nullptr && *type == DataType::undefined)) return rt("nullopt");
  }
  if (parameter.type == AttrType::place && is_empty_list(literal)) return rt("default_device");
  if (parameter.type == AttrType::scalar) {
    // PaddlePaddle treats "1e-5" in quotes as a number.
    const auto* quoted = std::get_if<std::string>(&literal.value);
    const std::optional<std::string> text = quoted != nullptr ? std::optional(*quoted) : spell(literal);
    if (!text) return std::nullopt;
    return rt("Scalar") + "(" + *text + ")";
  }
  std::optional<std::string> text = spell(literal);
  if (text && std::holds_alternative<LiteralList>(literal.value)) return base_type(parameter.type) + *text;
  return text;
}

std::optional<std::string> default_argument(const Op& op, const Attr& attr) {
  // The parameter's type is known here, so a list needs no name, and a number converts to a Scalar.
  const Literal& literal = *attr.default_value;
  const bool list = std::holds_alternative<LiteralList>(literal.value) && attr.type != AttrType::place;
  const bool number = attr.type == AttrType::scalar && !std::holds_alternative<std::string>(literal.value);
  return list || number ? spell(literal) : constant(op, attr, literal);
}

std::string data_type(DataType type) { return rt("dtype::" + std::string(yaml_name(type))); }

}  // namespace shardgen
