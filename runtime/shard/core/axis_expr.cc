// The parser and the printer of axis expressions. axis_expr_check.cc finds contradictions,
// axis_expr_gradient.cc derives gradients.
#include "shard/core/axis_expr.h"

#include <algorithm>

namespace shard {
namespace {

std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_word_char(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }
bool is_axis_name(std::string_view word) {
  const auto fits = [](char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '_'; };
  return !word.empty() && is_lower(word[0]) && std::all_of(word.begin(), word.end(), fits);
}

/// Reads from left to right. Each function returns false after the first problem.
class Parser {
 public:
  Parser(std::string_view text, AxisProblem& problem) : text_(text), problem_(problem) {}

  bool parse(AxisExpr& expr) {
    expr.each = eat_each();
    if (!parse_terms(expr.inputs)) return false;
    if (!eat("->")) return fail("The inputs must be followed by '->', found " + describe_next() + ".");
    if (!parse_terms(expr.outputs)) return false;
    if (eat("->")) return fail_at(position_ - 2, "An axis expression has one '->'.");
    if (eat("~") && !parse_commutation(expr.commutation.emplace())) return false;
    return at_end() || fail("Expected ',', '~' or the end, found " + describe_next() + ".");
  }

 private:
  bool fail_at(size_t at, std::string message) {
    problem_ = {at, std::move(message)};
    return false;
  }
  bool fail(std::string message) { return fail_at(here(), std::move(message)); }

  size_t here() {
    while (position_ < text_.size() && is_space(text_[position_])) ++position_;
    return position_;
  }
  bool at_end() { return here() == text_.size(); }
  bool next_is(std::string_view token) { return text_.substr(here()).starts_with(token); }
  bool eat(std::string_view token) {
    if (!next_is(token)) return false;
    position_ += token.size();
    return true;
  }
  /// Like eat(), but without space before the token: marks are attached to the word that they
  /// follow.
  bool eat_joined(std::string_view token) {
    if (!text_.substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  /// "each:max" is an axis with a type.
  bool eat_each() {
    constexpr std::string_view token = "each:";
    const std::string_view rest = text_.substr(here());
    return rest.starts_with(token) && (rest.size() == token.size() || !is_word_char(rest[token.size()])) && eat(token);
  }
  std::string_view word() {
    const size_t begin = position_;
    while (position_ < text_.size() && is_word_char(text_[position_])) ++position_;
    return text_.substr(begin, position_ - begin);
  }
  std::string describe_next() { return at_end() ? "the end" : in_quotes(text_.substr(position_, 1)); }
  /// The text from here to the next space or separator, for messages.
  std::string chunk(size_t at) const {
    size_t end = at;
    while (end < text_.size() && !is_space(text_[end]) && text_[end] != ',' && text_[end] != ']') ++end;
    return in_quotes(text_.substr(at, end - at));
  }

  bool parse_terms(std::vector<AxisTerm>& terms) {
    do {
      if (!parse_term(terms.emplace_back())) return false;
    } while (eat(","));
    return true;
  }

  bool parse_term(AxisTerm& term) {
    term.at = here();
    term.list = eat("[");
    while (!at_end() && !next_is(",") && !next_is("]") && !next_is("->") && !next_is("~") && !next_is("^")) {
      if (!parse_axis(term.axes.emplace_back())) return false;
    }
    if (next_is("^")) {
      term.transpose_at = position_++;
      term.transpose = word();
      if (term.transpose.empty())
        return fail_at(term.transpose_at, "'^' must be followed by the name of a bool attribute.");
    }
    if (term.list && !eat("]")) return fail_at(term.at, "'[' is opened here and never closed.");
    return !next_is("]") || fail("']' closes no '['.");
  }

  bool parse_axis(Axis& axis) {
    axis.at = here();
    axis.whole = eat("!");
    axis.combined = !axis.whole && eat("*");
    if (eat_joined("...")) {
      axis.kind = Axis::Kind::ellipsis;
      if (eat_joined("{") && !parse_marks(axis.marks)) return false;
    } else {
      const std::string_view name = word();
      const bool one = name == "1" && !axis.whole && !axis.combined;
      if (!one && !is_axis_name(name)) {
        return fail_at(axis.at, chunk(axis.at) + " is not an axis; an axis is a lower-case word, '...' or '1'.");
      }
      axis.kind = one ? Axis::Kind::one : Axis::Kind::name;
      if (!one) axis.name = name;
      axis.optional = !one && eat_joined("?");
      if (eat_joined(":") && !parse_type(axis.type)) return false;
      if (eat_joined("{"))
        return fail_at(position_ - 1, "Braces can follow '...' only, where an attribute names some of its dims.");
    }
    const bool ends = position_ == text_.size() || is_space(text_[position_]) ||
                      std::string_view(",]^~-").find(text_[position_]) != std::string_view::npos;
    return ends || fail_at(axis.at, chunk(axis.at) + " is not an axis; an axis is a lower-case word, '...' or '1'.");
  }

  bool parse_type(std::optional<ReduceType>& type) {
    const size_t at = position_;
    const std::string_view name = word();
    type = find_reduce_type(name);
    return type || fail_at(at, in_quotes(name) + " is not a reduction; choose sum, max, min, prod, avg, any or all.");
  }

  bool parse_marks(std::vector<AxisMark>& marks) {
    do {
      if (!parse_mark(marks.emplace_back())) return false;
    } while (eat(","));
    return eat("}") || fail("Expected ',' or '}' after an attribute in braces, found " + describe_next() + ".");
  }

  bool parse_mark(AxisMark& mark) {
    using Kind = AxisMark::Kind;
    mark.at = here();
    mark.kind = eat("!")   ? Kind::whole
                : eat("*") ? Kind::combined
                : eat("-") ? Kind::removed
                : eat("+") ? Kind::added
                : eat("@") ? Kind::permuted
                           : Kind::reduce;
    mark.attr = word();
    if (mark.attr.empty())
      return fail_at(mark.at,
                     "Braces contain names of attributes: '!axis', '*axis', 'axis:max', '-axis', '+axis' or '@perm'.");
    mark.onward = eat_joined("..");
    if (mark.onward && (mark.kind == Kind::added || mark.kind == Kind::permuted)) {
      return fail_at(mark.at, "'..' cannot follow '+" + mark.attr + "' or '@" + mark.attr + "'.");
    }
    if (mark.kind == Kind::reduce && eat_joined(":")) return parse_type(mark.type);
    if (mark.kind == Kind::removed && eat_joined("?")) {
      mark.flag_at = position_;
      mark.flag = word();
      if (mark.flag.empty()) return fail_at(mark.flag_at, "'?' must be followed by the name of a bool attribute.");
    }
    return true;
  }

  bool parse_commutation(Commutation& commutation) {
    commutation.at = here();
    const std::string_view name = word();
    const std::optional<Commutation::Kind> kind = find_commutation_kind(name);
    if (!kind)
      return fail_at(commutation.at,
                     in_quotes(name) + " is not a commutation; choose linear, rearranging, monotone or multilinear.");
    commutation.kind = *kind;
    if (!eat_joined("(")) return true;
    do {
      here();
      std::optional<ReduceType> type;
      if (!parse_type(type)) return false;
      commutation.types.push_back(*type);
    } while (eat(","));
    return eat(")") || fail("Expected ',' or ')' after a reduction, found " + describe_next() + ".");
  }

  std::string_view text_;
  size_t position_ = 0;
  AxisProblem& problem_;
};

std::string type_text(const std::optional<ReduceType>& type) { return type ? std::string(":") + to_string(*type) : ""; }

std::string to_string(const AxisMark& mark) {
  const auto sign = [&]() -> std::string {
    switch (mark.kind) {
      case AxisMark::Kind::whole: return "!";
      case AxisMark::Kind::combined: return "*";
      case AxisMark::Kind::reduce: return "";
      case AxisMark::Kind::removed: return "-";
      case AxisMark::Kind::added: return "+";
      case AxisMark::Kind::permuted: return "@";
    }
    return "";
  };
  return sign() + mark.attr + (mark.onward ? ".." : "") + type_text(mark.type) +
         (mark.flag.empty() ? "" : "?" + mark.flag);
}

std::string to_string(const Axis& axis) {
  const std::string sign = axis.whole ? "!" : axis.combined ? "*" : "";
  switch (axis.kind) {
    case Axis::Kind::name: return sign + axis.name + (axis.optional ? "?" : "") + type_text(axis.type);
    case Axis::Kind::one: return "1" + type_text(axis.type);
    case Axis::Kind::ellipsis: break;
  }
  std::string text = sign + "...";
  for (const AxisMark& mark : axis.marks) text += (&mark == &axis.marks.front() ? "{" : ", ") + to_string(mark);
  return text + (axis.marks.empty() ? "" : "}");
}

std::string to_string(const AxisTerm& term) {
  std::string text;
  for (const Axis& axis : term.axes) text += (text.empty() ? "" : " ") + to_string(axis);
  if (!term.transpose.empty()) text += " ^" + term.transpose;
  return term.list ? "[" + text + "]" : text;
}

std::string join(const std::vector<AxisTerm>& terms) {
  std::string text;
  for (const AxisTerm& term : terms) text += (&term == &terms.front() ? "" : ", ") + to_string(term);
  return text;
}

}  // namespace

const Axis* AxisTerm::ellipsis() const {
  const auto found =
      std::find_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.kind == Axis::Kind::ellipsis; });
  return found == axes.end() ? nullptr : &*found;
}

std::optional<Commutation::Kind> find_commutation_kind(std::string_view name) {
  const auto found = std::find(kCommutationNames.begin(), kCommutationNames.end(), name);
  if (found == kCommutationNames.end()) return std::nullopt;
  return static_cast<Commutation::Kind>(found - kCommutationNames.begin());
}

std::string to_string(const Commutation& commutation) {
  std::string types;
  for (const ReduceType type : commutation.types) types += (types.empty() ? "" : ", ") + std::string(to_string(type));
  return std::string(kCommutationNames[static_cast<size_t>(commutation.kind)]) +
         (types.empty() ? "" : "(" + types + ")");
}

std::vector<ReduceType> reductions_of(const Commutation& commutation) {
  using enum ReduceType;
  if (!commutation.types.empty()) return commutation.types;
  switch (commutation.kind) {
    case Commutation::Kind::linear:
    case Commutation::Kind::multilinear: return {sum, avg};
    case Commutation::Kind::rearranging: return {sum, max, min, prod, avg, any, all};
    case Commutation::Kind::monotone: return {max, min};
  }
  return {};
}

unsigned type_bits(const Commutation& commutation) {
  unsigned bits = 0;
  for (const ReduceType type : reductions_of(commutation)) bits |= 1u << static_cast<int>(type);
  return bits;
}

bool is_axis_expr(std::string_view rule) { return rule.find("->") != std::string_view::npos; }

std::optional<AxisExpr> parse_axis_expr(std::string_view text, AxisProblem& problem) {
  AxisExpr expr;
  if (!Parser(text, problem).parse(expr)) return std::nullopt;
  if (std::optional<AxisProblem> found = find_problem(expr)) {
    problem = std::move(*found);
    return std::nullopt;
  }
  return expr;
}

std::string to_string(const AxisExpr& expr) {
  return (expr.each ? "each: " : "") + join(expr.inputs) + " -> " + join(expr.outputs) +
         (expr.commutation ? " ~ " + to_string(*expr.commutation) : "");
}

bool is_elementwise(const AxisExpr& expr) {
  const auto is_ellipsis = [](const AxisTerm& term) {
    const Axis* const all = term.axes.size() == 1 && !term.list ? term.ellipsis() : nullptr;
    return all != nullptr && all->marks.empty() && !all->whole && !all->combined;
  };
  return std::all_of(expr.outputs.begin(), expr.outputs.end(), is_ellipsis) &&
         std::all_of(expr.inputs.begin(), expr.inputs.end(),
                     [&](const AxisTerm& term) { return is_ellipsis(term) || term.is_one(); });
}

}  // namespace shard
