// Whether default values fit the types of their attributes.
#include <fmt/format.h>

#include <limits>

#include "check/parts.h"

namespace shardgen {
namespace {

enum class Fit { good, converts, bad };

bool is_number(const Literal& literal) {
  return std::holds_alternative<int64_t>(literal.value) || std::holds_alternative<FloatValue>(literal.value);
}

Fit fits_bool(const Literal& literal) {
  if (std::holds_alternative<bool>(literal.value)) return Fit::good;
  return std::holds_alternative<int64_t>(literal.value) ? Fit::converts : Fit::bad;
}

Fit fits_integer(const Literal& literal, int64_t least, int64_t most) {
  if (std::holds_alternative<bool>(literal.value)) return Fit::converts;
  const auto* value = std::get_if<int64_t>(&literal.value);
  return value != nullptr && *value >= least && *value <= most ? Fit::good : Fit::bad;
}

Fit fits_scalar(const Literal& literal) {
  if (is_number(literal) || std::holds_alternative<bool>(literal.value)) return Fit::good;
  // A number in quotes, as in rtol="1e-5".
  return std::holds_alternative<std::string>(literal.value) ? Fit::converts : Fit::bad;
}

template <class T>
Fit good_if(const Literal& literal) {
  return std::holds_alternative<T>(literal.value) ? Fit::good : Fit::bad;
}

Fit fits(AttrType type, const Literal& literal);

Fit fits_list(AttrType element, const Literal& literal) {
  const auto* items = std::get_if<LiteralList>(&literal.value);
  if (items == nullptr) return Fit::bad;
  Fit worst = Fit::good;
  for (const Literal& item : *items) worst = std::max(worst, fits(element, item));
  return worst;
}

Fit fits_place(const Literal& literal) {
  if (const auto* items = std::get_if<LiteralList>(&literal.value)) return items->empty() ? Fit::good : Fit::bad;
  return good_if<PlaceValue>(literal);
}

Fit fits(AttrType type, const Literal& literal) {
  using int32_limits = std::numeric_limits<int32_t>;
  using int64_limits = std::numeric_limits<int64_t>;
  switch (type) {
    case AttrType::boolean: return fits_bool(literal);
    case AttrType::int32: return fits_integer(literal, int32_limits::min(), int32_limits::max());
    case AttrType::int64: return fits_integer(literal, int64_limits::min(), int64_limits::max());
    case AttrType::float32:
    case AttrType::float64: return is_number(literal) ? Fit::good : Fit::bad;
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

/// A text that C++ source can hold between quotes as it is.
bool is_plain_text(std::string_view text) { return text.find_first_of("\"\\\n\r") == std::string_view::npos; }

void check_default(const Attr& attr, DiagnosticSink& sink) {
  const Literal& value = *attr.default_value;
  if (const auto* opaque = std::get_if<Opaque>(&value.value)) {
    sink.error(opaque->at, opaque->code, opaque->problem);
    return;
  }
  if (attr.type == AttrType::unknown) return;
  const AttrType held = attr.type == AttrType::scalar && attr.scalar_of ? *attr.scalar_of : attr.type;
  Fit fit = fits(attr.type, value);
  if (fit == Fit::good && held != attr.type) fit = fits(held, value);
  switch (fit) {
    case Fit::good: break;
    case Fit::converts:
      sink.warning(
          attr.name.at, "converted-default",
          fmt::format("Default value {} of '{}' is not written as a {}.", value.spelling, attr.name.text, yaml_name(held)));
      break;
    case Fit::bad:
      sink.error(
          attr.name.at, "bad-default",
          fmt::format("Default value {} does not fit '{}' of type {}.", value.spelling, attr.name.text, yaml_name(held)));
      break;
  }
  if (const auto* text = std::get_if<std::string>(&value.value); text != nullptr && !is_plain_text(*text)) {
    sink.error(attr.name.at, "bad-default",
               fmt::format("The default value of '{}' holds a quote, a backslash or a line break.", attr.name.text));
  }
}

}  // namespace

void check_defaults(const Op& op, DiagnosticSink& sink) {
  const Attr* with_default = nullptr;
  for (const ArgRef arg : op.signature.args) {
    if (!arg.tensor && op.signature.attrs[arg.index].default_value) {
      with_default = &op.signature.attrs[arg.index];
      check_default(*with_default, sink);
    } else if (with_default != nullptr) {
      const Name& name = name_of(op.signature, arg);
      sink.warning(name.at, "default-order",
                   fmt::format("'{}' has no default value but stands after '{}', which has one: callers must give both.",
                               name.text, with_default->name.text));
      with_default = nullptr;
    }
  }
}

}  // namespace shardgen
