// Reads axis expressions. What they mean for placement is known to the runtime only.
#include "read/axis_expr.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardgen {
namespace {

bool is_axis_name(std::string_view word) {
  if (word.starts_with('!')) word.remove_prefix(1);
  if (word.empty() || word[0] < 'a' || word[0] > 'z') return false;
  return std::all_of(word.begin(), word.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool parse_terms(std::string_view text, std::vector<AxisTerm>& terms, std::string& problem) {
  for (const std::string_view part : split(text, ',')) {
    AxisTerm term;
    for (const std::string_view word : split(part, ' ')) {
      if (word.empty()) continue;
      if (word != "..." && word != "1" && !is_axis_name(word)) {
        problem = fmt::format("'{}' is not an axis; axes are lower-case words, '...', '1' and '!k'.", word);
        return false;
      }
      term.axes.emplace_back(word);
    }
    if (std::count(term.axes.begin(), term.axes.end(), "...") > 1) {
      problem = "A term can hold '...' only once.";
      return false;
    }
    terms.push_back(std::move(term));
  }
  return true;
}

std::string_view bare(std::string_view axis) {
  if (axis.starts_with('!')) axis.remove_prefix(1);
  return axis;
}

bool occurs(const std::vector<AxisTerm>& terms, std::string_view axis) {
  return std::any_of(terms.begin(), terms.end(), [&](const AxisTerm& term) {
    return std::any_of(term.axes.begin(), term.axes.end(), [&](const std::string& a) { return bare(a) == bare(axis); });
  });
}

std::string join(const std::vector<AxisTerm>& terms) {
  std::string text;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (i > 0) text += ", ";
    for (size_t k = 0; k < terms[i].axes.size(); ++k) text += (k > 0 ? " " : "") + terms[i].axes[k];
  }
  return text;
}

}  // namespace

bool is_axis_expr(std::string_view rule) { return rule.find("->") != std::string_view::npos; }

std::optional<AxisExpr> parse_axis_expr(std::string_view rule, std::string& problem) {
  const size_t arrow = rule.find("->");
  const std::string_view right = rule.substr(arrow + 2);
  if (right.find("->") != std::string_view::npos) {
    problem = "An axis expression has one '->'.";
    return std::nullopt;
  }
  AxisExpr expr;
  if (!parse_terms(rule.substr(0, arrow), expr.inputs, problem) || !parse_terms(right, expr.outputs, problem))
    return std::nullopt;
  for (const AxisTerm& term : expr.outputs) {
    for (const std::string& axis : term.axes) {
      if (axis == "1" || occurs(expr.inputs, axis)) continue;
      problem = fmt::format("Axis '{}' of an output occurs in no input.", axis);
      return std::nullopt;
    }
  }
  return expr;
}

std::string to_string(const AxisExpr& expr) { return join(expr.inputs) + " -> " + join(expr.outputs); }

bool is_elementwise(const AxisExpr& expr) {
  const auto is = [](const AxisTerm& term, std::string_view axis) { return term.axes.size() == 1 && term.axes[0] == axis; };
  return std::all_of(expr.outputs.begin(), expr.outputs.end(), [&](const AxisTerm& term) { return is(term, "..."); }) &&
         std::all_of(expr.inputs.begin(), expr.inputs.end(),
                     [&](const AxisTerm& term) { return is(term, "...") || is(term, "1"); });
}

}  // namespace shardgen
