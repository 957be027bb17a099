// Tokens of the small languages.
#include "read/cursor.h"

#include <fmt/format.h>

#include "model/word.h"

namespace shardgen {
namespace {}  // namespace

void Cursor::skip_space() {
  while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\t' || text_[position_] == '\n' ||
                                      text_[position_] == '\r')) {
    ++position_;
  }
}

bool Cursor::at_end() {
  skip_space();
  return position_ == text_.size();
}

char Cursor::peek() {
  skip_space();
  return position_ < text_.size() ? text_[position_] : '\0';
}

size_t Cursor::offset() {
  skip_space();
  return position_;
}

bool Cursor::eat(std::string_view token) {
  skip_space();
  if (!text_.substr(position_).starts_with(token)) return false;
  position_ += token.size();
  return true;
}

bool Cursor::expect(std::string_view token, std::string_view after) {
  if (eat(token)) return true;
  fail(fmt::format("Expected '{}' after {}, found {}.", token, after, describe_next()));
  return false;
}

Name Cursor::word(bool qualified) {
  skip_space();
  const size_t begin = position_;
  while (position_ < text_.size()) {
    if (is_word(text_[position_])) {
      ++position_;
    } else if (qualified && position_ > begin && text_.substr(position_).starts_with("::")) {
      position_ += 2;
    } else {
      break;
    }
  }
  return {std::string(text_.substr(begin, position_ - begin)), begin < position_ ? locate_(begin) : Location{}};
}

std::optional<Name> Cursor::expect_word(std::string_view what, bool qualified) {
  Name name = word(qualified);
  if (!name.text.empty()) return name;
  fail(fmt::format("Expected {}, found {}.", what, describe_next()));
  return std::nullopt;
}

std::string_view Cursor::number() {
  skip_space();
  const size_t begin = position_;
  size_t end = begin;
  if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
  if (end >= text_.size() || (!is_digit(text_[end]) && text_[end] != '.')) return {};
  while (end < text_.size()) {
    const char c = text_[end];
    const bool sign_of_exponent = (c == '-' || c == '+') && (text_[end - 1] == 'e' || text_[end - 1] == 'E');
    if (!is_word(c) && c != '.' && !sign_of_exponent) break;
    ++end;
  }
  position_ = end;
  return text_.substr(begin, end - begin);
}

std::optional<std::string> Cursor::quoted() {
  const char quote = peek();
  if (quote != '"' && quote != '\'') return std::nullopt;
  const size_t end = text_.find(quote, position_ + 1);
  if (end == std::string_view::npos) {
    fail("A quote is opened here and never closed.");
    return std::nullopt;
  }
  std::string value(text_.substr(position_ + 1, end - position_ - 1));
  position_ = end + 1;
  return value;
}

Name Cursor::raw_until(std::string_view ends) {
  const size_t begin = offset();
  int depth = 0;
  char quote = 0;
  for (; position_ < text_.size(); ++position_) {
    const char c = text_[position_];
    if (c == '"' || c == '\'') quote = quote == 0 ? c : quote == c ? '\0' : quote;
    if (quote != 0) continue;
    if (depth == 0 && ends.find(c) != std::string_view::npos) break;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
  }
  size_t end = position_;
  while (end > begin && text_[end - 1] == ' ') --end;
  return {std::string(text_.substr(begin, end - begin)), locate_(begin)};
}

std::optional<Name> Cursor::expression(std::string_view ends) {
  Name text = raw_until(ends);
  for (const char c : text.text) {
    if (c >= ' ' && c <= '~' && c != '\\') continue;
    fail_at(position_ - text.text.size(), "A C++ expression must be one line of plain characters without a backslash.",
            "cpp-expression");
    return std::nullopt;
  }
  return text;
}

void Cursor::fail_as(const Location& at, std::string code, const std::string& message) {
  if (!failed_) sink_->error(at, std::move(code), message);
  failed_ = true;
}

void Cursor::fail_at(size_t offset, const std::string& message, std::string code) {
  fail_as(locate_(offset), std::move(code), message);
}

void Cursor::expect_end(std::string_view what) {
  if (!failed_ && !at_end()) fail(fmt::format("Unexpected {} after {}.", describe_next(), what));
}

std::string Cursor::describe_next() {
  if (at_end()) return "the end";
  size_t end = position_ + 1;
  if (is_word(text_[position_])) {
    while (end < text_.size() && is_word(text_[end])) ++end;
  } else {
    // Whole UTF-8 characters only, so that a message is always valid text.
    while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) ++end;
  }
  return fmt::format("'{}'", text_.substr(position_, end - position_));
}

}  // namespace shardgen
