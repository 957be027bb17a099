// Decides which text of a description may reach C++. Spellings are only names, types, calls and
// literals: nothing in them can end a statement or a line, or open a comment.
#include <algorithm>

#include "lower/description.h"
#include "model/word.h"

namespace shardgen {
namespace {

/// "a::b"
bool is_qualified_name(std::string_view text) {
  while (true) {
    const size_t end = static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_word) - text.begin());
    if (end == 0 || is_digit(text[0])) return false;
    text.remove_prefix(end);
    if (text.empty()) return true;
    if (!text.starts_with("::")) return false;
    text.remove_prefix(2);
  }
}

/// True when brackets are balanced. The > of "->" is not a bracket.
bool is_balanced(std::string_view code) {
  std::string open;
  bool quoted = false;
  for (size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '(' || c == '[' || c == '<') open += c;
    const char opening = c == ')' ? '(' : c == ']' ? '[' : c == '>' && (i == 0 || code[i - 1] != '-') ? '<' : '\0';
    if (opening == '\0') continue;
    if (open.empty() || open.back() != opening) return false;
    open.pop_back();
  }
  return open.empty() && !quoted;
}

size_t count_holes(std::string_view text) {
  size_t holes = 0;
  for (size_t at = text.find("{}"); at != std::string_view::npos; at = text.find("{}", at + 2)) ++holes;
  return holes;
}

std::string refuse_code(std::string_view text, size_t holes) {
  std::string code(text);
  if (count_holes(text) != holes)
    return holes == 1 ? "must have '{}' once, for its argument" : "takes no argument, so it cannot have '{}'";
  if (const size_t hole = code.find("{}"); hole != std::string::npos) code.replace(hole, 2, "x");
  if (code.empty()) return "is empty";
  const auto allowed = [](char c) {
    return is_word(c) || std::string_view(" :<>,&*()[].!-\"").find(c) != std::string_view::npos;
  };
  const auto wrong = std::find_if_not(code.begin(), code.end(), allowed);
  if (wrong != code.end()) {
    const bool visible = *wrong > ' ' && *wrong < '\x7f';
    return visible ? std::string("has the character '") + *wrong + "', which no name, type or call has"
                   : "has a character that no name, type or call has";
  }
  if (!is_balanced(code)) return "has a bracket or a quote without its other half";
  const bool whole = is_word(code.back()) || std::string_view(">)]*&\"").find(code.back()) != std::string_view::npos;
  const bool begins = is_word(code[0]) || std::string_view(":(!*&").find(code[0]) != std::string_view::npos;
  return whole && begins ? "" : "is not a whole name, type or call";
}

std::string refuse_text(std::string_view text) {
  const auto allowed = [](char c) { return c >= ' ' && c < '\x7f' && c != '"' && c != '\\'; };
  return std::all_of(text.begin(), text.end(), allowed) ? ""
                                                        : "must be one line of ASCII without quotes and backslashes";
}

}  // namespace

SymbolKind kind_of(std::string_view symbol, std::string_view built_in_spelling) {
  if (symbol == "note" || symbol == "mismatch") return SymbolKind::text;
  if (symbol.starts_with("namespace_")) return SymbolKind::name_space;
  return count_holes(built_in_spelling) > 0 ? SymbolKind::pattern : SymbolKind::code;
}

std::string refusal(SymbolKind kind, std::string_view spelling) {
  switch (kind) {
    case SymbolKind::code: return refuse_code(spelling, 0);
    case SymbolKind::pattern: return refuse_code(spelling, 1);
    case SymbolKind::name_space: return is_qualified_name(spelling) ? "" : "is not the name of a namespace";
    case SymbolKind::identifier:
      return is_qualified_name(spelling) && spelling.find(':') == spelling.npos ? "" : "is not a name";
    case SymbolKind::text: return refuse_text(spelling);
  }
  return "";
}

}  // namespace shardgen
