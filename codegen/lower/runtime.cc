// Marks and spells symbols of runtimes.
#include "lower/runtime.h"

#include <fmt/format.h>

#include "lower/description.h"
#include "model/word.h"

namespace shardgen {
namespace {

// <begin>symbol<end>, or <begin>symbol<argument>text<end>.
constexpr char kBegin = '\x1e';
constexpr char kArgument = '\x1d';
constexpr char kEnd = '\x1f';
constexpr std::string_view kDeclare = "declare";  // in the place of a symbol

/// The end of the symbol that starts at `at`: words joined by "::".
size_t symbol_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    if (is_word(text[at])) ++at;
    else if (text.substr(at).starts_with("::") && at + 2 < text.size() && is_word(text[at + 2])) at += 2;
    else break;
  }
  return at;
}

/// The position of the bracket that closes the one at `at`, or npos.
size_t closing_bracket(std::string_view text, size_t at) {
  int depth = 0;
  for (; at < text.size() && text[at] != '\n'; ++at) {
    if (text[at] == '[') ++depth;
    if (text[at] == ']' && --depth == 0) return at;
  }
  return std::string_view::npos;
}

/// Spells a text from left to right; a symbol's argument is spelled recursively.
class Speller {
 public:
  Speller(const Runtime& runtime, std::string_view text) : runtime_(runtime), text_(text) {}

  /// Spells up to the end of the text or of the current argument.
  std::string text() {
    std::string spelled;
    spelled.reserve(text_.size() - at_);
    while (at_ < text_.size() && text_[at_] != kEnd) {
      const size_t mark = std::min(text_.find_first_of("\x1e\x1f", at_), text_.size());
      spelled += text_.substr(at_, mark - at_);
      at_ = mark;
      if (at_ < text_.size() && text_[at_] == kBegin) spelled += symbol();
    }
    return spelled;
  }

 private:
  std::string symbol() {
    const size_t end = text_.find_first_of("\x1d\x1f", ++at_);
    const std::string_view name = text_.substr(at_, end - at_);
    std::string argument;
    at_ = end;
    if (text_[at_] == kArgument) {
      ++at_;
      argument = text();
    }
    ++at_;
    if (name == kDeclare) {
      variables_ = " " + argument + " ";
      return "";
    }
    const auto found = runtime_.symbols.find(name);
    if (found == runtime_.symbols.end()) return "";
    std::string spelled = found->second;
    const size_t hole = spelled.find("{}");
    if (hole != std::string::npos) spelled.replace(hole, 2, argument);
    return is_hidden(found->second) ? "::" + runtime_.symbols.find("namespace_api")->second + "::" + spelled : spelled;
  }

  /// True when a variable has the name that a spelling starts with. A name before :: is never
  /// looked up as a variable.
  bool is_hidden(std::string_view spelling) const {
    const std::string_view name = leading_name(spelling);
    if (name.empty() || variables_.find(" " + std::string(name) + " ") == std::string::npos) return false;
    return name.size() < spelling.size() || !text_.substr(at_).starts_with("::");
  }

  const Runtime& runtime_;
  std::string_view text_;
  size_t at_ = 0;
  std::string variables_;  // each with a space before and after it
};

}  // namespace

std::string rt(std::string_view symbol) { return kBegin + std::string(symbol) + kEnd; }
std::string rt(std::string_view symbol, std::string_view argument) {
  return kBegin + std::string(symbol) + kArgument + std::string(argument) + kEnd;
}

std::string declare(std::string_view names) { return rt(kDeclare, names); }

std::string_view leading_name(std::string_view spelling) {
  size_t end = 0;
  while (end < spelling.size() && is_word(spelling[end])) ++end;
  const std::string_view name = spelling.substr(0, end);
  return name == "const" || spelling.substr(end).starts_with("::") ? "" : name;
}

std::string mark_symbols(std::string_view text) {
  std::string marked;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '@') {
      marked += text[i++];
      continue;
    }
    const size_t end = symbol_end(text, i + 1);
    const std::string_view symbol = text.substr(i + 1, end - i - 1);
    const size_t close = end < text.size() && text[end] == '[' ? closing_bracket(text, end) : std::string_view::npos;
    if (close == std::string_view::npos) {
      marked += rt(symbol);
      i = end;
    } else {
      marked += rt(symbol, mark_symbols(text.substr(end + 1, close - end - 1)));
      i = close + 1;
    }
  }
  return marked;
}

std::vector<std::string_view> symbols_in(std::string_view text) {
  std::vector<std::string_view> symbols;
  for (size_t at = text.find(kBegin); at != std::string_view::npos; at = text.find(kBegin, at)) {
    const size_t end = text.find_first_of("\x1d\x1f", ++at);
    if (const std::string_view symbol = text.substr(at, end - at); symbol != kDeclare) symbols.push_back(symbol);
  }
  return symbols;
}

std::set<std::string> missing_symbols(const Runtime& runtime, std::string_view text) {
  std::set<std::string> missing;
  for (const std::string_view symbol : symbols_in(text)) {
    if (!runtime.symbols.contains(symbol)) missing.emplace(symbol);
  }
  return missing;
}

std::string spell_symbols(const Runtime& runtime, std::string_view text) { return Speller(runtime, text).text(); }

std::string describe_missing(std::string_view symbol) {
  if (symbol.starts_with("dtype::")) return fmt::format("the runtime does not have the dtype {}", symbol.substr(7));
  if (symbol.starts_with("type::")) return fmt::format("the runtime does not have the type {}", symbol.substr(6));
  return fmt::format("the runtime has no symbol '{}'", symbol);
}

const Runtime& own_runtime() {
  static const Runtime runtime = [] {
    std::vector<std::string> problems;
    return load_runtime("", problems).value();
  }();
  return runtime;
}

}  // namespace shardgen
