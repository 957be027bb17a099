// Placement rules that are one line: "m k, k n -> m n". Only as far as checking and `elementwise` need them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

struct AxisTerm {
  std::vector<std::string> axes;  // "m", "...", "1", "!k"
};

struct AxisExpr {
  std::vector<AxisTerm> inputs;
  std::vector<AxisTerm> outputs;
};

/// True when a rule is an axis expression and not the name of a C++ rule.
bool is_axis_expr(std::string_view rule);
/// Reads an expression. On bad input returns nothing and says why in `problem`, a sentence.
std::optional<AxisExpr> parse_axis_expr(std::string_view rule, std::string& problem);
std::string to_string(const AxisExpr& expr);
/// True when each output is `...` and each input is `...` or `1`: every output element depends on one element of each input.
bool is_elementwise(const AxisExpr& expr);

}  // namespace shardgen
