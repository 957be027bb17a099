#include "shard/program/ir/attr_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shard::program {
namespace {

std::string text_of(const Scalar& scalar) {
  return scalar.is_integer() ? fmt::format("{}", scalar.to<int64_t>()) : fmt::format("{}", scalar.to<double>());
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return fmt::format("{}", value);
  else if constexpr (std::is_same_v<T, std::string>) return fmt::format("'{}'", value);
  else return std::string(to_string(value));
}
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "none";
}
template <class T>
std::string text_of(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(text_of(static_cast<const T&>(value)));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

}  // namespace

std::string attr_text(const Attr& attr) {
  return std::visit([](const auto& value) { return text_of(value); }, attr);
}

}  // namespace shard::program
