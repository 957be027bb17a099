// Axis expressions as text: parsing, printing, the positions of problems, and the expression of a gradient.
#include <catch2/catch.hpp>

#include "shard/core/axis_expr.h"

namespace axis_expr_test {

using namespace shard;

namespace {

AxisExpr parse(const std::string& text) {
  AxisProblem problem;
  const std::optional<AxisExpr> expr = parse_axis_expr(text, problem);
  INFO(text << ": " << problem.message);
  REQUIRE(expr);
  return *expr;
}

/// "column: sentence" of the problem.
std::string problem_of(const std::string& text) {
  AxisProblem problem;
  if (parse_axis_expr(text, problem)) return "";
  return std::to_string(problem.at + 1) + ": " + problem.message;
}

std::string gradient(const std::string& rule, const SlotNames& forward, const SlotNames& backward) {
  const std::optional<AxisExpr> expr = gradient_of(parse(rule), forward, backward);
  return expr ? to_string(*expr) : "none";
}

const SlotNames kBinary{{"x", "y"}, {"out"}};
const SlotNames kBinaryGrad{{"x", "y", "out_grad"}, {"x_grad", "y_grad"}};
const SlotNames kUnary{{"x"}, {"out"}};
const SlotNames kUnaryGrad{{"x", "out_grad"}, {"x_grad"}};

}  // namespace

TEST_CASE("an axis expression in canonical spacing prints as it was read") {
  const std::string rule = GENERATE(
      "m k, k n -> m n", "..., ... -> ...", "..., v d -> ... d", "!k 1 -> k", "... -> ", "b k:max -> b", "b k:avg -> b",
      "b k:min j:prod i:any h:all g:sum -> b", "[...] -> ...{+axis}", "...{!axis} -> [...{!axis}]",
      "[a b], [1], 1 -> [a b]", "...{axis:sum} -> ...{-axis?keepdim}", "...{axis} -> ...{-axis}",
      "...{!axis, other:max} -> ...{!axis, -other}", "... -> ...{@perm}",
      "...{!begin..}, 1, 1 -> ...{!begin..}, ...{-begin..}", "...{begin..:max} -> ...{-begin..?keep}",
      "... m? k ^transpose_x, ... k n? ^transpose_y -> ... m? n?", "[m k ^flag] -> m k", "..., ... -> ... ~ linear",
      "... -> ... ~ monotone(max)", "..., ... -> ... ~ multilinear(sum, avg)", "... -> ... ~ rearranging",
      "b !k, 1 -> b !k, 1:sum", "...{*axis} -> ...{*axis}", "... *d, *d -> ... *d, ...",
      "...{*begin..}, 1 -> ...{*begin..}, ...{-begin..}", "each: [...], [1], 1 -> [...], 1", "each: [m k], [m] -> [k]",
      "each:max b -> b", "*..., 1 -> *...", "!... -> !...", "*...{!axis} -> *...{!axis}");
  CHECK(to_string(parse(rule)) == rule);
}

TEST_CASE("spacing is free, and line ends are space") {
  CHECK(to_string(parse("  m   k ,k n->m n~linear")) == "m k, k n -> m n ~ linear");
  CHECK(to_string(parse("[ ... ]\n  -> ...{ +axis }")) == "[...] -> ...{+axis}");
}

TEST_CASE("the tree has what the text says, and where") {
  const AxisExpr expr = parse("... m? !k ^flip, [1] -> ...{-axis?keep} m? ~ monotone(max)");
  REQUIRE(expr.inputs.size() == 2);
  const AxisTerm& x = expr.inputs[0];
  REQUIRE(x.axes.size() == 3);
  CHECK(x.ellipsis() == &x.axes[0]);
  CHECK(x.axes[1].optional);
  CHECK(x.axes[2].whole);
  CHECK(x.axes[2].at == 7);
  CHECK(x.transpose == "flip");
  CHECK(x.transpose_at == 10);
  CHECK(expr.inputs[1].list);
  CHECK(expr.inputs[1].is_one());
  const AxisMark& mark = expr.outputs[0].axes[0].marks.at(0);
  CHECK(mark.kind == AxisMark::Kind::removed);
  CHECK(mark.attr == "axis");
  CHECK(mark.flag == "keep");
  CHECK(mark.at == 28);
  REQUIRE(expr.commutation);
  CHECK(expr.commutation->kind == Commutation::Kind::monotone);
  CHECK(expr.commutation->types == std::vector<ReduceType>{ReduceType::max});
}

TEST_CASE("each bad expression is one sentence with its column") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"m k", "4: The inputs must be followed by '->', found the end."},
      {"m -> m -> m", "8: An axis expression has one '->'."},
      {"m -> m ]", "8: ']' closes no '['."},
      {"m @ -> m", "3: '@' is not an axis; an axis is a lower-case word, '...' or '1'."},
      {"M -> M", "1: 'M' is not an axis; an axis is a lower-case word, '...' or '1'."},
      {"m, !1 -> m", "4: '!1' is not an axis; an axis is a lower-case word, '...' or '1'."},
      {"m...k -> m", "1: 'm...k' is not an axis; an axis is a lower-case word, '...' or '1'."},
      {"... m ... -> m", "7: A term can contain '...' only once."},
      {"m m -> m", "3: Axis 'm' occurs in one term twice."},
      {"m -> n", "6: Axis 'n' of an output occurs in no input."},
      {"m -> ... m", "6: Axis '...' of an output occurs in no input."},
      {"[m -> m", "1: '[' is opened here and never closed."},
      {"m] -> m", "2: ']' closes no '['."},
      {"m{!axis} -> m", "2: Braces can follow '...' only, where an attribute names some of its dims."},
      {"...{} -> ...",
       "5: Braces contain names of attributes: '!axis', '*axis', 'axis:max', '-axis', '+axis' or '@perm'."},
      {"...{!axis -> ...", "11: Expected ',' or '}' after an attribute in braces, found '-'."},
      {"...{-a, +b} -> ...",
       "9: Braces can contain one of '-axis', '+axis' and '@perm', because their order would be ambiguous."},
      {"... -> ...{@perm..}", "12: '..' cannot follow '+perm' or '@perm'."},
      {"... -> ...{-axis?}", "18: '?' must be followed by the name of a bool attribute."},
      {"m k:maximum -> m", "5: 'maximum' is not a reduction; choose sum, max, min, prod, avg, any or all."},
      {"...{axis:most} -> ...{-axis}", "10: 'most' is not a reduction; choose sum, max, min, prod, avg, any or all."},
      {"m k:max -> m k", "3: Axis 'k' has a type of reduction, but an output keeps it."},
      {"m k:max, k:min -> m", "3: Axis 'k' is reduced by 'min' in one term and by 'max' in another."},
      {"...{axis:max} -> ...",
       "5: The dims of 'axis' are reduced, but an output keeps them; write '...{-axis}' there."},
      {"...{axis:max} -> ...{-other}",
       "5: The dims of 'axis' are reduced, but an output keeps them; write '...{-axis}' there."},
      {"m *k:max -> m", "3: Axis 'k' is combined by the kernel, so a reduction type has no meaning."},
      {"m, *1 -> m", "4: '*1' is not an axis; an axis is a lower-case word, '...' or '1'."},
      {"m !k:max -> m", "3: Axis 'k' is never sharded, so a reduction type has no meaning on it."},
      {"m k -> m:max",
       "8: A type of reduction belongs to an axis of an input; in an output only '1:sum' has one, alone in its term."},
      {"... -> ...{axis:max}", "12: A reduction belongs to an input; an output is written '-axis'."},
      {"m, 1:sum -> m", "4: '1' can have a reduction type in an output only, where it is a sum over what is sharded."},
      {"m? k, m -> m", "1: Axis 'm' has a '?' in one term but not in another."},
      {"m ^flag -> m", "3: '^flag' swaps the last two axes, so the term must end in two names."},
      {"m k ^ -> m", "5: '^' must be followed by the name of a bool attribute."},
      {"m -> m ~ lineer", "10: 'lineer' is not a commutation; choose linear, rearranging, monotone or multilinear."},
      {"m -> m ~ linear(sun)", "17: 'sun' is not a reduction; choose sum, max, min, prod, avg, any or all."},
      {"m -> m ~ linear(sum", "20: Expected ',' or ')' after a reduction, found the end."},
      {"each: m -> m", "7: 'each:' needs an input that is a list, a term in square brackets."},
      {"each: [m], m -> [m]", "12: With 'each:', a tensor that is in no list belongs to all entries; write '1'."},
      {"each: [...], 1 -> ...", "19: With 'each:', a tensor that is in no list belongs to all entries; write '1'."},
      {"each: [...], 1 -> [...], 1:sum",
       "26: With 'each:', no sum over the entries of a list can be pending; write '1'."},
      {"each: [...], [1] -> [...], [1:sum]",
       "28: With 'each:', no sum over the entries of a list can be pending; write '1'."},
      {"each: [...], [1] -> [...] ~ linear",
       "29: With 'each:', an op whose entries have a tensor in common, '1', cannot commute with reductions."},
      {"each -> m", "9: Axis 'm' of an output occurs in no input."},
      {"m -> m ~ linear m", "17: Expected ',', '~' or the end, found 'm'."},
  };
  for (const auto& [text, problem] : cases) {
    INFO(text);
    CHECK(problem_of(text) == problem);
  }
}

TEST_CASE("an expression cut off anywhere is read without a crash") {
  const std::string text = "[... m? k:max ^flag], ...{!a, b..:max} -> ...{-b..?keep}, 1:sum ~ monotone(max, min)";
  for (size_t size = 0; size <= text.size(); ++size) {
    AxisProblem problem;
    parse_axis_expr(text.substr(0, size), problem);
    CHECK(problem.at <= size);
  }
}

TEST_CASE("elementwise expressions are those of '...' and '1' without marks") {
  CHECK(is_elementwise(parse("..., ... -> ...")));
  CHECK(is_elementwise(parse("..., 1 -> ..., ...")));
  CHECK_FALSE(is_elementwise(parse("..., v d -> ... d")));
  CHECK_FALSE(is_elementwise(parse("m n -> m n")));
  CHECK_FALSE(is_elementwise(parse("...{!axis} -> ...{!axis}")));
  CHECK_FALSE(is_elementwise(parse("[...] -> ...")));
}

TEST_CASE("a kind of commutation stands for its types unless some are given") {
  CHECK(type_bits({Commutation::Kind::linear, {}}) == 0x11);
  CHECK(type_bits({Commutation::Kind::multilinear, {}}) == 0x11);
  CHECK(type_bits({Commutation::Kind::monotone, {}}) == 0x6);
  CHECK(type_bits({Commutation::Kind::rearranging, {}}) == 0x7f);
  CHECK(type_bits({Commutation::Kind::monotone, {ReduceType::max}}) == 0x2);
}

TEST_CASE("gradients: each tensor keeps the term of the tensor that it belongs to") {
  CHECK(gradient("..., ... -> ... ~ linear", kBinary, kBinaryGrad) == "..., ..., ... -> ..., ...");
  CHECK(gradient("... m? k ^tx, ... k n? ^ty -> ... m? n?", kBinary, kBinaryGrad) ==
        "... m? k ^tx, ... k n? ^ty, ... m? n? -> ... m? k ^tx, ... k n? ^ty");
  CHECK(gradient("...{!axis} -> ...{!axis}", kUnary, {{"out", "out_grad"}, {"x_grad"}}) ==
        "...{!axis}, ...{!axis} -> ...{!axis}");
  // Whether the kernel of the gradient combines values too is not known.
  CHECK(gradient("...{*axis} -> ...{*axis}", kUnary, {{"out", "out_grad"}, {"x_grad"}}) ==
        "...{!axis}, ...{!axis} -> ...{!axis}");
  CHECK(gradient("m *k -> m *k", kUnary, kUnaryGrad) == "m !k, m !k -> m !k");
  CHECK(gradient("*... -> *...", kUnary, kUnaryGrad) == "!..., !... -> !...");
  CHECK(gradient("each: [...], [...] -> [...]", kBinary, kBinaryGrad) == "each: [...], [...], [...] -> [...], [...]");
  CHECK(gradient("each: [...], 1 -> [...]", kBinary, kBinaryGrad) ==
        "none");  // the gradient of y is a sum over entries
  CHECK(gradient("..., v d -> ... d", {{"x", "weight"}, {"out"}}, {{"x", "weight", "out_grad"}, {"weight_grad"}}) ==
        "..., v d, ... d -> v d");
  CHECK(gradient("[...{!axis}] -> ...{!axis}", kUnary, kUnaryGrad) == "[...{!axis}], ...{!axis} -> [...{!axis}]");
}

TEST_CASE("gradients: a sum gives its gradient to every summand, another reduction looks at all of them") {
  CHECK(gradient("...{axis:sum} -> ...{-axis?keepdim}", kUnary, kUnaryGrad) == "..., ...{-axis?keepdim} -> ...");
  CHECK(gradient("m k -> m", kUnary, kUnaryGrad) == "m k, m -> m k");
  CHECK(gradient("...{axis:max} -> ...{-axis?keepdim}", kUnary, {{"x", "out", "out_grad"}, {"x_grad"}}) ==
        "...{!axis}, ...{-axis?keepdim}, ...{-axis?keepdim} -> ...{!axis}");
  CHECK(gradient("m k:prod -> m", kUnary, kUnaryGrad) == "m !k, m -> m !k");
}

TEST_CASE("gradients: what was whole for all indices gets the sum over them") {
  const SlotNames forward{{"x", "scale", "bias"}, {"out", "mean", "variance"}};
  const SlotNames backward{{"x", "scale", "bias", "mean", "variance", "out_grad"},
                           {"x_grad", "scale_grad", "bias_grad"}};
  CHECK(gradient("...{!a..}, 1, 1 -> ...{!a..}, ...{-a..}, ...{-a..}", forward, backward) ==
        "...{!a..}, 1, 1, ...{-a..}, ...{-a..}, ...{!a..} -> ...{!a..}, 1:sum, 1:sum");
}

TEST_CASE("gradients: linear where all arguments are gradients, in a second derivative too") {
  CHECK(gradient("... -> ...", kUnary, {{"out_grad"}, {"x_grad"}}) == "... -> ... ~ linear");
  CHECK(gradient("... -> ... ~ monotone", kUnary, kUnaryGrad) == "..., ... -> ...");
  CHECK(gradient("..., ... -> ...", kBinary, {{"x", "y", "out_grad"}, {"x_grad", "y_grad"}, {"x", "y"}}) ==
        "..., ..., ... -> ..., ... ~ linear");
  CHECK(gradient("..., ... -> ...", {{"x", "out_grad"}, {"x_grad"}}, {{"x", "x_grad_grad"}, {"out_grad_grad"}}) ==
        "..., ... -> ...");
}

TEST_CASE("gradients: nothing follows where a name belongs to no tensor, or an output's dims to no argument") {
  CHECK(gradient("... -> ...", kUnary, {{"saved", "out_grad"}, {"x_grad"}}) == "none");
  CHECK(gradient("... -> ...", kUnary, {{"out_grad"}, {"out_grad"}}) == "none");
  CHECK(gradient("... -> ...", kUnary, {{"out_grad"}, {"w_grad"}}) == "none");
  CHECK(gradient("m k -> m", kUnary, {{"out_grad"}, {"x_grad"}}) == "none");
}

}  // namespace axis_expr_test
