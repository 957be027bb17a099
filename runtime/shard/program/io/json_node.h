// A place in the JSON text of a program: reads what is there, or throws an error with the place and
// what was expected.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shard/core/error.h"

namespace shard::program {

using Json = nlohmann::ordered_json;

template <class... Args>
[[noreturn]] void refuse_at(const std::string& at, fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorCode::invalid_argument, "[from_json] at {}: {}", at.empty() ? "the top" : at,
       fmt::format(text, std::forward<Args>(args)...));
}

/// Parses JSON. Throws invalid_argument for text that is not JSON, and for duplicate keys.
Json parse_json(std::string_view text);

/// A place in the text.
class JsonNode {
 public:
  JsonNode(const Json& json, std::string at) : json_(&json), at_(std::move(at)) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    refuse_at(at_, text, std::forward<Args>(args)...);
  }
  template <class T>
  [[noreturn]] void expected(const T& what) const {
    refuse("expected {}, but it is {}", what,
           json_->is_structured() ? (json_->is_array() ? "a list" : "an object") : json_->dump());
  }

  bool is_null() const { return json_->is_null(); }
  bool has(std::string_view key) const { return json_->is_object() && json_->contains(key); }
  JsonNode operator[](std::string_view key) const {
    if (!json_->is_object()) expected("an object");
    if (!json_->contains(key)) refuse("expected the key '{}', which is missing", key);
    return {json_->at(std::string(key)), fmt::format("{}/{}", at_, key)};
  }
  /// Throws unless the object has exactly these keys; `optional` ones may be missing. `why` says
  /// what a difference means.
  template <class Required>
  void keys(const Required& required, std::initializer_list<std::string_view> optional = {},
            std::string_view why = "") const {
    for (const std::string_view key : required) {
      if (!has(key)) refuse("expected the key '{}', which is missing{}", key, why);
    }
    if (!json_->is_object()) expected("an object");
    for (const auto& [key, value] : json_->items()) {
      const bool known = std::find(std::begin(required), std::end(required), key) != std::end(required) ||
                         std::find(optional.begin(), optional.end(), key) != optional.end();
      if (!known) refuse("expected no key '{}'{}", key, why);
    }
  }
  void keys(std::initializer_list<std::string_view> required,
            std::initializer_list<std::string_view> optional = {}) const {
    keys<std::initializer_list<std::string_view>>(required, optional);
  }

  std::vector<JsonNode> list() const {
    if (!json_->is_array()) expected("a list");
    std::vector<JsonNode> nodes;
    for (size_t i = 0; i < json_->size(); ++i) nodes.emplace_back((*json_)[i], fmt::format("{}/{}", at_, i));
    return nodes;
  }
  std::string text() const {
    if (!json_->is_string()) expected("a text");
    return json_->get<std::string>();
  }
  bool boolean() const {
    if (!json_->is_boolean()) expected("true or false");
    return json_->get<bool>();
  }
  template <class T>
  T integer(T least = std::numeric_limits<T>::min(), T most = std::numeric_limits<T>::max()) const {
    bool fits = json_->is_number_unsigned() ? std::in_range<T>(json_->get<uint64_t>())
                                            : json_->is_number_integer() && std::in_range<T>(json_->get<int64_t>());
    const T value = fits ? json_->get<T>() : T{};
    if (!fits || value < least || value > most) expected(fmt::format("an integer from {} to {}", least, most));
    return value;
  }
  bool is_integer() const { return json_->is_number_integer(); }
  template <class T>
  T real() const {
    if (json_->is_number()) {
      const double value = json_->get<double>();
      if (std::abs(value) > static_cast<double>(std::numeric_limits<T>::max())) expected("a smaller number");
      return static_cast<T>(value);
    }
    if (!json_->is_string()) expected("a number");
    const std::string& text = json_->get_ref<const std::string&>();
    if (text == "inf" || text == "-inf")
      return text == "inf" ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
    std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> bits = 0;
    const char* const end = text.data() + text.size();
    if (!text.starts_with("nan:") || std::from_chars(text.data() + 4, end, bits, 16).ptr != end ||
        !std::isnan(std::bit_cast<T>(bits))) {
      expected("a number, \"inf\", \"-inf\" or \"nan:\" with its bits");
    }
    return std::bit_cast<T>(bits);
  }

  /// The result of `make`. An error that it throws is rethrown with this place.
  template <class F>
  auto attempt(F&& make) const {
    try {
      return make();
    } catch (const Error& error) { refuse("{}", error.what()); }
  }

 private:
  const Json* json_;
  std::string at_;
};

}  // namespace shard::program
