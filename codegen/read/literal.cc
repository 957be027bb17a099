// Reads constants. check/defaults.cc checks that a constant fits the type of its attribute.
#include "read/literal.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "diag/suggest.h"

namespace shardgen {
namespace {

std::optional<Literal> float_literal(std::string_view text) {
  std::string_view digits = text;
  const bool single = digits.ends_with('f') || digits.ends_with('F');
  if (single) digits.remove_suffix(1);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return Literal{FloatValue{value, single}, std::string(text)};
}

std::optional<Literal> number_literal(std::string_view text) {
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  while (digits.ends_with('L') || digits.ends_with('l')) digits.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return Literal{value, std::string(text)};
  if (error == std::errc::result_out_of_range) return std::nullopt;
  return float_literal(text);
}

std::optional<Literal> data_type_literal(Cursor& cursor, size_t begin, const std::string& word) {
  const std::string name = word.substr(word.find("::") + 2);
  const std::optional<DataType> type = parse_data_type(name);
  if (!type) {
    cursor.fail_at(begin, fmt::format("Unknown data type '{}'{}", name, suggestion(name, data_type_names())),
                   "unknown-type");
    return std::nullopt;
  }
  return Literal{*type, word};
}

std::optional<Literal> place_literal(Cursor& cursor, size_t begin, const std::string& word) {
  if (!cursor.expect("(", "a place") || !cursor.expect(")", "'" + word + "('")) return std::nullopt;
  if (word != "CPUPlace") {
    cursor.fail_at(begin, fmt::format("Unknown place '{}'{}", word, suggestion(word, {"CPUPlace"})), "unknown-type");
    return std::nullopt;
  }
  return Literal{PlaceValue::cpu, "CPUPlace()"};
}

std::optional<Literal> word_literal(Cursor& cursor) {
  const size_t begin = cursor.offset();
  const std::string word = cursor.word(true).text;
  if (word == "true" || word == "false") return Literal{word == "true", word};
  if (word == "INT64_MAX") return Literal{std::numeric_limits<int64_t>::max(), word};
  if (word.starts_with("DataType::")) return data_type_literal(cursor, begin, word);
  if (cursor.peek() == '(') return place_literal(cursor, begin, word);
  cursor.fail_at(begin, fmt::format("'{}' is not a constant that can be a default value.", word), "bad-default");
  return std::nullopt;
}

/// "{1, 2}" after its opening brace.
std::optional<Literal> list_literal(Cursor& cursor) {
  LiteralList items;
  std::string spelling = "{";
  while (!cursor.eat("}")) {
    if (!items.empty() && !cursor.expect(",", "an element of a list")) return std::nullopt;
    if (cursor.peek() == '{') {
      cursor.fail("A list in a list is not a default value.", "bad-default");
      return std::nullopt;
    }
    std::optional<Literal> item = read_literal(cursor);
    if (!item) return std::nullopt;
    spelling += (items.empty() ? "" : ", ") + item->spelling;
    items.push_back(std::move(*item));
  }
  return Literal{std::move(items), spelling + "}"};
}

/// A number with C++ semantics: `1.0f` is single precision, `1 / 2` is 0.
using Number = std::variant<int64_t, FloatValue>;

std::optional<Number> apply_floating(char op, const Number& left, const Number& right) {
  const auto widened = [](const Number& number) {
    const auto* integer = std::get_if<int64_t>(&number);
    // gets the precision of the other operand
    if (integer != nullptr) return FloatValue{static_cast<double>(*integer), true};
    const FloatValue& value = std::get<FloatValue>(number);
    return value.single ? FloatValue{static_cast<float>(value.value), true} : value;
  };
  const FloatValue a = widened(left), b = widened(right);
  double value = 0;
  switch (op) {
    case '+': value = a.value + b.value; break;
    case '-': value = a.value - b.value; break;
    case '*': value = a.value * b.value; break;
    case '/': value = a.value / b.value; break;
    default: return std::nullopt;
  }
  const bool single = a.single && b.single;
  if (single) value = static_cast<float>(value);
  if (!std::isfinite(value)) return std::nullopt;
  return FloatValue{value, single};
}

std::optional<Number> apply_integers(char op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case '+': return __builtin_add_overflow(left, right, &result) ? std::nullopt : std::optional<Number>(result);
    case '-': return __builtin_sub_overflow(left, right, &result) ? std::nullopt : std::optional<Number>(result);
    case '*': return __builtin_mul_overflow(left, right, &result) ? std::nullopt : std::optional<Number>(result);
    case '/':
      if (right == 0 || (right == -1 && left == std::numeric_limits<int64_t>::min())) return std::nullopt;
      return left / right;
    case '<':
      if (left < 0 || right < 0 || right > 62 || left > (std::numeric_limits<int64_t>::max() >> right))
        return std::nullopt;
      return left << right;
    default: return left < 0 || right < 0 || right > 62 ? std::nullopt : std::optional<Number>(left >> right);
  }
}

/// Sums, products and shifts of numbers in brackets, read from left to right by precedence.
class NumberReader {
 public:
  explicit NumberReader(std::string_view text) : text_(text) {}

  std::optional<Number> read() {
    const std::optional<Number> value = operation(0, 0);
    skip_space();
    return text_.empty() ? value : std::nullopt;
  }

 private:
  static constexpr int kMaxDepth = 64;

  void skip_space() {
    while (!text_.empty() && text_.front() == ' ') text_.remove_prefix(1);
  }
  bool eat(std::string_view token) {
    skip_space();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }

  /// Precedence levels, from the lowest: shifts, sums, products, operands.
  std::optional<Number> operation(int level, int depth) {
    if (level == 3) return operand(depth);
    std::optional<Number> left = operation(level + 1, depth);
    while (left) {
      const char op = next_operator(level);
      if (op == 0) break;
      const std::optional<Number> right = operation(level + 1, depth);
      left = right ? apply(op, *left, *right) : std::nullopt;
    }
    return left;
  }

  char next_operator(int level) {
    if (level == 0) return eat("<<") ? '<' : eat(">>") ? '>' : 0;
    if (level == 1) return eat("+") ? '+' : eat("-") ? '-' : 0;
    return eat("*") ? '*' : eat("/") ? '/' : 0;
  }

  static std::optional<Number> apply(char op, const Number& left, const Number& right) {
    const auto* a = std::get_if<int64_t>(&left);
    const auto* b = std::get_if<int64_t>(&right);
    return a != nullptr && b != nullptr ? apply_integers(op, *a, *b) : apply_floating(op, left, right);
  }

  std::optional<Number> operand(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    if (eat("(")) {
      const std::optional<Number> inner = operation(0, depth + 1);
      return eat(")") ? inner : std::nullopt;
    }
    if (eat("-")) {
      const std::optional<Number> inner = operand(depth + 1);
      return inner ? apply('-', int64_t{0}, *inner) : std::nullopt;
    }
    skip_space();
    const bool number = !text_.empty() && ((text_[0] >= '0' && text_[0] <= '9') || text_[0] == '.');
    size_t size = 0;
    while (size < text_.size() && is_number_char(size)) ++size;
    const std::optional<Literal> literal = number ? number_literal(text_.substr(0, size)) : std::nullopt;
    if (!literal) return std::nullopt;
    text_.remove_prefix(size);
    if (const auto* integer = std::get_if<int64_t>(&literal->value)) return *integer;
    return std::get<FloatValue>(literal->value);
  }

  bool is_number_char(size_t at) const {
    const char c = text_[at];
    const bool sign_of_exponent = (c == '-' || c == '+') && at > 0 && (text_[at - 1] == 'e' || text_[at - 1] == 'E');
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || sign_of_exponent;
  }

  std::string_view text_;
};

}  // namespace

std::optional<Literal> evaluate_number(std::string_view text) {
  const std::optional<Number> number = NumberReader(text).read();
  if (!number) return std::nullopt;
  if (const auto* integer = std::get_if<int64_t>(&*number)) return Literal{*integer, std::string(text)};
  return Literal{std::get<FloatValue>(*number), std::string(text)};
}

std::optional<Literal> read_literal(Cursor& cursor) {
  const size_t begin = cursor.offset();
  if (cursor.eat("{")) return list_literal(cursor);
  if (std::optional<std::string> text = cursor.quoted()) return Literal{*text, "\"" + *text + "\""};
  if (cursor.failed()) return std::nullopt;
  if (const std::string_view text = cursor.number(); !text.empty()) {
    std::optional<Literal> number = number_literal(text);
    if (!number) cursor.fail_at(begin, fmt::format("'{}' is not a number.", text), "bad-default");
    return number;
  }
  const char next = cursor.peek();
  if ((next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || next == '_') return word_literal(cursor);
  cursor.fail(fmt::format("Expected a constant, found {}.", cursor.describe_next()), "bad-default");
  return std::nullopt;
}

}  // namespace shardgen
