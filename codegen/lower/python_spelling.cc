// Types and constants in Python.
#include "lower/python_spelling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "lower/spelling.h"

namespace shardgen {
namespace {

constexpr std::array<std::string_view, 35> kKeywords = {
    "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
    "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
    "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
    "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};

std::string base_python_type(AttrType type) {
  switch (type) {
    case AttrType::boolean: return "bool";
    case AttrType::int32:
    case AttrType::int64: return "int";
    case AttrType::float32:
    case AttrType::float64: return "float";
    case AttrType::str: return "str";
    case AttrType::dtype: return "dtype | str";
    case AttrType::place: return "Device | str";
    case AttrType::scalar: return "float";  // which an int is too
    case AttrType::int_array:
    case AttrType::int32_list:
    case AttrType::int64_list: return "int | Sequence[int]";
    case AttrType::boolean_list: return "Sequence[bool]";
    case AttrType::float32_list:
    case AttrType::float64_list:
    case AttrType::scalar_list: return "Sequence[float]";
    case AttrType::str_list: return "Sequence[str]";
    case AttrType::unknown: return "";  // such an op is not generated
  }
  return "";
}

std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  if (text == "inf" || text == "-inf" || text == "nan") return fmt::format("float('{}')", text);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string python_string(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
      continue;
    }
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

struct PythonSpeller {
  bool scalar;

  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(FloatValue value) const { return python_float(value.value); }
  std::string operator()(const std::string& value) const { return scalar ? value : python_string(value); }
  std::string operator()(DataType value) const {
    return value == DataType::undefined ? "None" : python_string(lowered(yaml_name(value)));
  }
  std::string operator()(PlaceValue value) const { return value == PlaceValue::cpu ? "'cpu'" : "None"; }
  std::string operator()(const Opaque&) const { return "..."; }
  std::string operator()(const LiteralList& items) const {
    std::vector<std::string> texts;
    for (const Literal& item : items) texts.push_back(std::visit(*this, item.value));
    return fmt::format("({}{})", fmt::join(texts, ", "), texts.size() == 1 ? "," : "");
  }
};

}  // namespace

std::string python_name(const std::string& name) {
  return std::find(kKeywords.begin(), kKeywords.end(), name) != kKeywords.end() ? name + "_" : name;
}

std::string python_type(const Input& input, bool optional) {
  return std::string(input.list ? "Sequence[Tensor]" : "Tensor") + (optional ? " | None" : "");
}

std::string python_type(const Op& op, const Attr& attr) {
  return base_python_type(attr.type) + (may_be_open(op, attr) || attr.type == AttrType::place ? " | None" : "");
}

std::string python_default(const Attr& attr) {
  if (attr.type == AttrType::place && std::holds_alternative<LiteralList>(attr.default_value->value)) return "None";
  return std::visit(PythonSpeller{attr.type == AttrType::scalar}, attr.default_value->value);
}

std::string in_quotes(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace shardgen
