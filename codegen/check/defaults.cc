// Checks that constants, in particular default values, fit the types of their attributes and can be
// written in C++.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "check/parts.h"

namespace shardgen {
namespace {

enum class Fit { good, converts, bad };

Fit fits_bool(const Literal& literal) {
  if (std::holds_alternative<bool>(literal.value)) return Fit::good;
  const auto* number = std::get_if<int64_t>(&literal.value);
  return number != nullptr && (*number == 0 || *number == 1) ? Fit::converts : Fit::bad;
}

/// `digits`: of the mantissa. C++ rejects an integer in a list of floats if it would be rounded.
Fit fits_float(const Literal& literal, double most, int digits, bool in_list) {
  if (const auto* number = std::get_if<int64_t>(&literal.value)) {
    const int64_t exact = int64_t{1} << digits;
    return !in_list || (*number >= -exact && *number <= exact) ? Fit::good : Fit::bad;
  }
  const auto* number = std::get_if<FloatValue>(&literal.value);
  if (number == nullptr) return Fit::bad;
  return std::abs(number->value) <= (number->single ? std::numeric_limits<float>::max() : most) ? Fit::good : Fit::bad;
}

Fit fits_integer(const Literal& literal, int64_t least, int64_t most) {
  if (std::holds_alternative<bool>(literal.value)) return Fit::converts;
  const auto* value = std::get_if<int64_t>(&literal.value);
  return value != nullptr && *value >= least && *value <= most ? Fit::good : Fit::bad;
}

/// True for "1e-5", which C++ source may contain without its quotes.
bool is_quoted_number(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string::npos) return false;
  // A leading zero makes a number octal in C++.
  const size_t first = text[0] == '-' ? 1 : 0;
  if (text.size() > first + 1 && text[first] == '0' && text.find_first_of(".eE") == std::string::npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Fit fits_scalar(const Literal& literal) {
  if (std::holds_alternative<bool>(literal.value)) return Fit::good;
  if (const auto* text = std::get_if<std::string>(&literal.value))
    return is_quoted_number(*text) ? Fit::converts : Fit::bad;
  using limits = std::numeric_limits<double>;
  return fits_float(literal, limits::max(), limits::digits, false);
}

template <class T>
Fit good_if(const Literal& literal) {
  return std::holds_alternative<T>(literal.value) ? Fit::good : Fit::bad;
}

Fit fits(AttrType type, const Literal& literal, bool in_list = false);

Fit fits_list(AttrType element, const Literal& literal) {
  const auto* items = std::get_if<LiteralList>(&literal.value);
  if (items == nullptr) return Fit::bad;
  Fit worst = Fit::good;
  for (const Literal& item : *items) worst = std::max(worst, fits(element, item, true));
  return worst;
}

Fit fits_place(const Literal& literal) {
  if (const auto* items = std::get_if<LiteralList>(&literal.value)) return items->empty() ? Fit::good : Fit::bad;
  return good_if<PlaceValue>(literal);
}

Fit fits(AttrType type, const Literal& literal, bool in_list) {
  using float_limits = std::numeric_limits<float>;
  using double_limits = std::numeric_limits<double>;
  using int32_limits = std::numeric_limits<int32_t>;
  using int64_limits = std::numeric_limits<int64_t>;
  switch (type) {
    case AttrType::boolean: return fits_bool(literal);
    case AttrType::int32: return fits_integer(literal, int32_limits::min(), int32_limits::max());
    case AttrType::int64: return fits_integer(literal, int64_limits::min(), int64_limits::max());
    case AttrType::float32: return fits_float(literal, float_limits::max(), float_limits::digits, in_list);
    case AttrType::float64: return fits_float(literal, double_limits::max(), double_limits::digits, in_list);
    case AttrType::str: return good_if<std::string>(literal);
    case AttrType::dtype: return good_if<DataType>(literal);
    case AttrType::place: return fits_place(literal);
    case AttrType::scalar: return fits_scalar(literal);
    case AttrType::int_array:
    case AttrType::int64_list: return fits_list(AttrType::int64, literal);
    case AttrType::boolean_list: return fits_list(AttrType::boolean, literal);
    case AttrType::int32_list: return fits_list(AttrType::int32, literal);
    case AttrType::float32_list: return fits_list(AttrType::float32, literal);
    case AttrType::float64_list: return fits_list(AttrType::float64, literal);
    case AttrType::str_list: return fits_list(AttrType::str, literal);
    case AttrType::scalar_list: return fits_list(AttrType::scalar, literal);
    case AttrType::unknown: return Fit::good;
  }
  return Fit::bad;
}

/// True for a text that a C++ string literal can contain unescaped.
bool is_plain_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c >= 0x20 && c != 0x7F && c != '"' && c != '\\'; });
}

bool holds_plain_texts(const Literal& literal) {
  if (const auto* text = std::get_if<std::string>(&literal.value)) return is_plain_text(*text);
  const auto* items = std::get_if<LiteralList>(&literal.value);
  return items == nullptr || std::all_of(items->begin(), items->end(), holds_plain_texts);
}

}  // namespace

bool check_texts(const Literal& value, const Location& at, std::string_view what, DiagnosticSink& sink) {
  if (holds_plain_texts(value)) return true;
  sink.error(
      at, "bad-default",
      fmt::format(
          "{} contains a quote, a backslash or a control character, which C++ source cannot represent: remove it.",
          what));
  return false;
}

void check_constant(const Attr& attr, const Literal& value, const Location& at, std::string_view what,
                    DiagnosticSink& sink) {
  if (const auto* opaque = std::get_if<Opaque>(&value.value)) {
    sink.error(opaque->at, opaque->code, opaque->problem);
    return;
  }
  if (attr.type == AttrType::unknown || !holds_plain_texts(value)) return;
  const AttrType held = attr.type == AttrType::scalar && attr.scalar_of ? *attr.scalar_of : attr.type;
  Fit fit = fits(attr.type, value);
  if (fit == Fit::good && held != attr.type) fit = fits(held, value);
  switch (fit) {
    case Fit::good: break;
    case Fit::converts:
      sink.warning(at, "converted-default",
                   fmt::format("{} {} of '{}' is not written as a value of type {}.", what, value.spelling,
                               attr.name.text, yaml_name(held)));
      break;
    case Fit::bad:
      sink.error(
          at, "bad-default",
          fmt::format("{} {} does not fit '{}' of type {}.", what, value.spelling, attr.name.text, yaml_name(held)));
      break;
  }
}

void check_defaults(const Op& op, DiagnosticSink& sink) {
  const Attr* with_default = nullptr;
  for (const ArgRef arg : op.signature.args) {
    if (!arg.tensor && op.signature.attrs[arg.index].default_value) {
      with_default = &op.signature.attrs[arg.index];
      check_texts(*with_default->default_value, with_default->name.at,
                  fmt::format("The default value of '{}'", with_default->name.text), sink);
      check_constant(*with_default, *with_default->default_value, with_default->name.at, "Default value", sink);
    } else if (with_default != nullptr) {
      const Name& name = name_of(op.signature, arg);
      sink.warning(name.at, "default-order",
                   fmt::format("'{}' has no default value but comes after '{}', which has one: callers must pass both.",
                               name.text, with_default->name.text));
      with_default = nullptr;
    }
  }
}

}  // namespace shardgen
