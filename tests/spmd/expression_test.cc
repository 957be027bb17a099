// The meaning of axis expressions for the tensors of a call: forward, in reverse, and for gradients.
// core/axis_expr_test.cc tests parsing, solver_test.cc the rules of the library's ops.
#include <random>

#include "shard/ops/math_ops.h"
#include "shard/ops/nn_ops.h"
#include "shard/ops/reduce_ops.h"
#include "shard/ops/shape_ops.h"
#include "spmd/rule_case.h"

namespace expression_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr std::string_view kAxis[] = {"axis"};
constexpr std::string_view kAxisKeep[] = {"axis", "keep"};
constexpr std::string_view kFlags[] = {"tx", "ty"};

}  // namespace

TEST_CASE("axis expressions: terms, broadcast and whole dims") {
  const Expression inner("m k, k n -> m n"), whole("m !k -> m", 1), partial("m k -> m", 1), right("..., v d -> ... d");
  const Expression kept("m k -> m 1", 1), late("m k -> m !k", 1);
  check_cases({
      {inner.def, {{{6, 4}, "a, b"}, {{4, 8}, "-, -"}}, {}, {{6, 8}}, "[a, b], [b, -] -> [a, -] sum(b)"},
      {whole.def, {{{6, 4}, "a, b"}}, {}, {{6}}, "[a, -] -> [a]"},
      {kept.def, {{{6, 4}, "a, -"}}, {}, {{6, 1}}, "[a, -] -> [a, -]"},
      {late.def, {{{6, 4}, "a, b"}}, {}, {{6, 4}}, "[a, -] -> [a, -]"},
      {partial.def, {{{6, 4}, "a, b"}}, {}, {{6}}, "[a, b] -> [a] sum(b)"},
      {right.def, {{{2, 6}, "a, -"}, {{4, 8}, "-, b"}}, {}, {{2, 6, 8}}, "[a, -], [-, b] -> [a, -, b]"},
      {right.def, {{{}, ""}, {{4, 8}, "-, b"}}, {}, {{8}}, "[], [-, b] -> [b]"},
      {inner.def, {{{6, 1}, "-, a"}, {{4, 8}, "b, -"}}, {}, {{6, 8}}, "[-, -], [b, -] -> [-, -] sum(b)"},
  });
}

TEST_CASE("axis expressions: what does not fit is an error with the op, the expression and its place") {
  const auto text = [](const Expression& e, const std::vector<In>& inputs, const std::vector<Dims>& outputs) {
    return error_of([&] { run({e.def, inputs, {}, outputs, ""}); }, ErrorCode::layout);
  };
  const In x{{6, 4}, "a, b"};
  const std::string few = text(Expression("m k -> m"), {x, x}, {{6}});
  CHECK_THAT(few, Catch::Contains(
                      "[mine] axis expression \"m k -> m\" (mine.yaml:3): its number of inputs is not that of the op"));
  CHECK_THAT(text(Expression("m k, k n -> m n, m"), {x, x}, {{6, 4}}),
             Catch::Contains("its number of outputs is not that of the op"));
  CHECK_THAT(text(Expression("m k n -> m", 1), {x}, {{6}}), Catch::Contains("[6, 4] has too few dims"));
  CHECK_THAT(text(Expression("m -> m", 1), {x}, {{6}}), Catch::Contains("[6, 4] has too many dims"));
  CHECK_THAT(text(Expression("... m k n -> m", 1), {x}, {{6}}), Catch::Contains("too few dims"));
  CHECK_THAT(text(Expression("m k -> m z", 1), {x}, {{6, 4}}),
             Catch::Contains("column 10: Axis 'z' of an output occurs in no input"));
  CHECK_THAT(text(Expression("m k -> m k", 1), {x}, {{6}}), Catch::Contains("too few dims"));
  CHECK_THAT(text(Expression("m k -> m", 1), {x}, {{6, 4}}), Catch::Contains("too many dims"));
  CHECK_THAT(text(Expression("... -> ...", 1), {{{6}, "a"}}, {{2, 6}}),
             Catch::Contains("more dims than '...' has in the inputs"));
}

TEST_CASE("axis expressions: a reduced axis leaves a pending reduction of its type") {
  const Expression max("m k:max -> m", 1), any("m k:any -> m", 1), two("m k:max j -> m", 1);
  check_cases({
      {max.def, {{{6, 4}, "a, b"}}, {}, {{6}}, "[a, b] -> [a] max(b)"},
      {any.def, {{{6, 4}, "-, a+b", DType::boolean}}, {}, {{6}}, "[-, a+b] -> [-] any(a) any(b)"},
      {two.def, {{{6, 4, 4}, "-, b, a"}}, {}, {{6}}, "[-, b, a] -> [-] sum(a) max(b)"},
  });
}

TEST_CASE("axis expressions: attributes name dims of '...' that stay whole or are reduced") {
  const Expression whole("...{!axis} -> ...{!axis}", 1, 1, kAxis),
      onward("...{!axis..}, 1 -> ...{!axis..}, ...{-axis..}", 2, 2, kAxis);
  const Expression max("...{axis:max} -> ...{-axis?keep}", 1, 1, kAxisKeep),
      drop("...{axis:min} -> ...{-axis}", 1, 1, kAxis);
  const Dims d{6, 4, 8};
  check_cases({
      {whole.def, {{d, "a, -, b"}}, {int64_t{-1}}, {d}, "[a, -, -] -> [a, -, -]"},
      {whole.def, {{d, "a, -, b"}}, {Scalar(0)}, {d}, "[-, -, b] -> [-, -, b]"},
      {whole.def, {{d, "a, -, b"}}, {IntArray{0, -2}}, {d}, "[-, -, b] -> [-, -, b]"},
      {whole.def, {{d, "a, -, b"}}, {IntArray{}}, {d}, "[-, -, -] -> [-, -, -]"},
      {whole.def, {{{}, ""}}, {int64_t{-1}}, {{}}, "[] -> []"},
      {onward.def, {{d, "a, b, -"}, {{32}, "b"}}, {int64_t{1}}, {d, {6}}, "[a, -, -], [-] -> [a, -, -], [a]"},
      {onward.def, {{d, "a, b, -"}, {{8}, "-"}}, {int64_t{-1}}, {d, {6, 4}}, "[a, b, -], [-] -> [a, b, -], [a, b]"},
      {max.def, {{d, "a, -, b"}}, {IntArray{2}, kNo}, {{6, 4}}, "[a, -, b] -> [a, -] max(b)"},
      {max.def, {{d, "a, -, b"}}, {IntArray{2}, kYes}, {{6, 4, 1}}, "[a, -, b] -> [a, -, -] max(b)"},
      {max.def, {{d, "a, -, b"}}, {IntArray{}, kNo}, {{}}, "[a, -, b] -> [] max(a) max(b)"},
      {drop.def, {{d, "a, -, b"}}, {int64_t{0}}, {{4, 8}}, "[a, -, b] -> [-, b] min(a)"},
  });
}

TEST_CASE("axis expressions: attributes add and order dims of '...'") {
  const Expression stack("[...] -> ...{+axis}", 1, 1, kAxis), order("... -> ...{@axis}", 1, 1, kAxis),
      back("...{@axis} -> ...", 1, 1, kAxis);
  const Dims d{6, 4};
  check_cases({
      {stack.def, {{d, "a, -"}, {d, "-, b"}}, {int64_t{0}}, {{2, 6, 4}}, "[a, b], [a, b] -> [-, a, b]", {2}},
      {stack.def, {{d, "a, -"}, {d, "-, b"}}, {int64_t{-1}}, {{6, 4, 2}}, "[a, b], [a, b] -> [a, b, -]", {2}},
      {stack.def, {{d, "a, b"}}, {IntArray{0, 2}}, {{1, 6, 1, 4}}, "[a, b] -> [-, a, -, b]", {1}},
      {order.def, {{{6, 4, 8}, "a, -, b"}}, {IntArray{2, 0, -2}}, {{8, 6, 4}}, "[a, -, b] -> [b, a, -]"},
      {back.def, {{{8, 6, 4}, "b, a, -"}}, {IntArray{2, 0, 1}}, {{6, 4, 8}}, "[b, a, -] -> [a, -, b]"},
  });
}

TEST_CASE("axis expressions: a flag swaps the last two axes, tensors with too few dims lack an optional one") {
  const Expression product("... m? k ^tx, ... k n? ^ty -> ... m? n?", 2, 1, kFlags);
  check_cases({
      {product.def, {{{6, 4}, "a, b"}, {{4, 8}, "-, -"}}, {kNo, kNo}, {{6, 8}}, "[a, b], [b, -] -> [a, -] sum(b)"},
      {product.def, {{{4, 6}, "a, b"}, {{8, 4}, "-, -"}}, {kYes, kYes}, {{6, 8}}, "[a, b], [-, a] -> [b, -] sum(a)"},
      {product.def, {{{4}, "a"}, {{8, 4}, "b, -"}}, {kYes, kYes}, {{8}}, "[a], [b, a] -> [b] sum(a)"},
      {product.def, {{{5, 6, 4}, "a, -, b"}, {{4}, "-"}}, {kNo, kYes}, {{5, 6}}, "[a, -, b], [b] -> [a, -] sum(b)"},
  });
}

TEST_CASE("axis expressions: lists, and outputs that lack a letter others keep") {
  const Expression list("[m k], k -> [m k]", 2, 1), sums("m k -> m k, m", 1, 2), uniform("..., 1 -> ..., 1", 2, 2),
      total("... -> 1", 1);
  Expression parts = list;
  static constexpr SlotDef results[] = {{"out", SlotDef::Kind::list}};
  parts.def.outputs = results;
  const Dims d{6, 4};
  check_cases({
      {parts.def, {{d, "a, -"}, {d, "-, b"}, {{4}, "-"}}, {}, {d, d}, "[a, b], [a, b], [b] -> [a, b], [a, b]", {2, 1}},
      {sums.def, {{d, "a, b"}}, {}, {d, {6}}, "[a, b] -> [a, b], [a] sum(b)"},
      {uniform.def, {{d, "a, b"}, {{1}, "-"}}, {}, {d, {1}}, "[a, b], [-] -> [a, b], [-]"},
      {total.def, {{d, "a, b"}}, {}, {{}}, "[a, b] -> [] sum(a) sum(b)"},
  });
}

TEST_CASE("axis expressions: with 'each:' the entries of lists have layouts of their own") {
  const Expression each("each: [...], [1], [...], [...], 1 -> [...], [...], 1", 5, 3);
  const In x{{6, 4}, "a, b"}, y{{6}, "b"}, one{{1}, "-"};
  const In grad_x{{6, 4}, "-, a"}, grad_y{{6}, "- | sum(a)"};
  Case call{each.def, {x, y, one, grad_x, grad_y, one}, {}, {{6, 4}, {6}, {1}}, ""};
  call.slots = {2, 1, 2, 0, 1};
  call.output_slots = {2, 0, 1};
  call.pinned = {true, true};
  CHECK(run(call).text == "[a, b], [b], [-], [a, b], [b], [-] -> [a, b], [b], [-]");
  CHECK(run(call, {"-, b", "a", nullptr}).text == "[-, b], [a], [-], [-, b], [a], [-] -> [-, b], [a], [-]");

  call.inputs = {x, y, {{1}, "a"}, one, x, y, one};
  call.slots = {2, 2, 2, 0, 1};
  CHECK(run(call).text == "[a, b], [b], [-], [-], [a, b], [b], [-] -> [a, b], [b], [-]");
  call.slots = {2, 1, 1, 2, 1};
  call.output_slots = {2, 0, 1};
  CHECK_THAT(
      error_of([&] { run(call); }, ErrorCode::layout),
      Catch::Contains("[mine] axis expression \"each: ") && Catch::Contains("(mine.yaml:3)") &&
          Catch::Contains("a list has 1 tensors where another has 2; only a list whose term is [1] can have one"));
}

TEST_CASE("axis expressions: '*...' may be sharded, and the kernel combines over the axes that shard it") {
  const Expression norm("*..., ... -> *..., 1", 2, 2), whole("!... -> !...", 1),
      each("each: [*...] -> [*...], 1", 1, 2);
  const Dims d{6, 4};
  const Case one{norm.def, {{d, "a, -"}, {d, "-, -"}}, {}, {d, {1}}, ""};
  CHECK(run(one).text == "[a, -], [a, -] -> [a, -], [-]");
  CHECK(run(one).reduce_axes == AxisList{0});
  CHECK(run({whole.def, {{d, "a, b"}}, {}, {d}, ""}).text == "[-, -] -> [-, -]");
  Case all{each.def, {{d, "-, b"}, {{6}, "-"}, {{8}, "b"}}, {}, {d, {6}, {8}, {1}}, ""};
  all.slots = {3};
  all.output_slots = {3, 1};
  CHECK(run(all).text == "[-, b], [-], [b] -> [-, b], [-], [b], [-]");
  CHECK(run(all).reduce_axes == AxisList{1});
}

TEST_CASE("axis expressions: the commutation mark counts as the op's table does") {
  const Expression linear("..., ... -> ... ~ linear"), multilinear("..., ... -> ... ~ multilinear"),
      max("... -> ... ~ monotone(max)", 1);
  Expression guarded("... -> ... ~ linear", 1);
  register_guard("TestNever", [](const RuleArgs&) { return false; });
  guarded.def.commute_guard = "TestNever";
  const Dims d{6, 4};
  check_cases({
      {linear.def, {{d, "-, - | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, -] sum(a), [-, -] sum(a) -> [-, -] sum(a)"},
      {multilinear.def, {{d, "-, - | sum(a)"}, {d, "-, -"}}, {}, {d}, "[-, -] sum(a), [-, -] -> [-, -] sum(a)"},
      {max.def, {{d, "-, - | max(a), sum(b)"}}, {}, {d}, "[-, -] max(a) -> [-, -] max(a)"},
      {guarded.def, {{d, "-, - | sum(a)"}}, {}, {d}, "[-, -] -> [-, -]"},
  });
}

TEST_CASE("axis expressions: attributes that do not fit a call are named") {
  const auto text = [](const Expression& e, const std::vector<In>& inputs, const std::vector<AttrValue>& attrs,
                       const std::vector<Dims>& outputs, ErrorCode code) {
    return error_of([&] { run({e.def, inputs, attrs, outputs, ""}); }, code);
  };
  const Dims d{6, 4};
  const In x{d, "a, b"};
  CHECK_THAT(text(Expression("...{!axis} -> ...{!axis}", 1, 1, kAxis), {x}, {int64_t{2}}, {d}, ErrorCode::out_of_range),
             Catch::Contains("axis"));
  CHECK_THAT(text(Expression("...{!dim} -> ...{!dim}", 1, 1, kAxis), {x}, {int64_t{0}}, {d}, ErrorCode::internal),
             Catch::Contains("'dim'"));
  CHECK_THAT(text(Expression("... -> ...{@axis}", 1, 1, kAxis), {x}, {IntArray{0}}, {d}, ErrorCode::layout),
             Catch::Contains("'axis' does not list each dim"));
  CHECK_THAT(text(Expression("m k ^axis -> m k", 1, 1, kAxis), {x}, {int64_t{0}}, {d}, ErrorCode::internal),
             Catch::Contains("'axis' is not a bool"));
  CHECK_THAT(text(Expression("m? n? k -> m? n? k", 1), {x}, {}, {d}, ErrorCode::layout),
             Catch::Contains("does not determine which of its optional axes"));
}

// --- reverse

TEST_CASE("reverse: each mesh axis goes to the letter that an output has it on") {
  const auto reverse = [](const Case& c, const std::vector<const char*>& wanted) { return run(c, wanted).text; };
  const Dims x{64, 32}, y{32, 48}, out{64, 48}, d{6, 4};
  const Case product{ops::matmul, {{x, "-, a"}, {y, "-, b"}}, {kNo, kNo}, {out}, ""};
  CHECK(reverse(product, {"a, b"}) == "[a, -], [-, b] -> [a, b]");
  CHECK(reverse(product, {"b+a, -"}) == "[b+a, -], [-, -] -> [b+a, -]");
  CHECK(reverse(product, {"-, - | sum(a)"}) == "[-, -], [-, -] -> [-, -]");
  CHECK(reverse(product, {nullptr}) == "[-, -], [-, -] -> [-, -]");
  const Case flipped{ops::matmul, {{{2, 32, 64}, "-, -, -"}, {{48, 32}, "-, -"}}, {kYes, kYes}, {{2, 64, 48}}, ""};
  CHECK(reverse(flipped, {"-, a, b"}) == "[-, -, a], [b, -] -> [-, a, b]");
  const Case broadcast{ops::add, {{d, "-, -"}, {{1, 4}, "-, -"}}, {}, {d}, ""};
  CHECK(reverse(broadcast, {"a, b"}) == "[a, b], [-, b] -> [a, b]");
  const Case lower{ops::add, {{{4}, "-"}, {{5, 7, 4}, "-, -, -"}}, {}, {{5, 7, 4}}, ""};
  CHECK(reverse(lower, {"b, a, -"}) == "[-], [b, a, -] -> [b, a, -]");
  CHECK(reverse(lower, {"-, -, a+b"}) == "[a+b], [-, -, a+b] -> [-, -, a+b]");
}

TEST_CASE("reverse: whole and reduced dims are asked of nobody, and combined ones are") {
  const auto reverse = [](const Case& c, const std::vector<const char*>& wanted) { return run(c, wanted).text; };
  const Dims d{5, 4, 7};
  CHECK(reverse({ops::softmax, {{d, "-, -, -"}}, {int64_t{-1}}, {d}, ""}, {"a, -, b"}) == "[a, -, b] -> [a, -, b]");
  CHECK(reverse({ops::sum, {{d, "a, -, b"}}, {IntArray{1}, kNo}, {{5, 7}}, ""}, {"b, a"}) == "[b, -, a] -> [b, a]");
  CHECK(reverse({ops::sum, {{d, "a, -, b"}}, {IntArray{1}, kYes}, {{5, 1, 7}}, ""}, {"b, a, -"}) ==
        "[b, -, -] -> [b, -, -]");
  CHECK(reverse({ops::transpose, {{d, "-, -, -"}}, {IntArray{2, 0, 1}}, {{7, 5, 4}}, ""}, {"a, b, -"}) ==
        "[b, -, a] -> [a, b, -]");
  const std::vector<AttrValue> norm = {AttrValue(1e-5), AttrValue(int64_t{1})};
  const Case layer{ops::layer_norm, {{d, "-, -, -"}, {{28}, "-"}, {{28}, nullptr}}, norm, {d, {5}, {5}}, ""};
  CHECK(reverse(layer, {"-, a, -", "b", nullptr}) == "[b, a, -], [-], [] -> [b, a, -], [b], [b]");
}

TEST_CASE("reverse: the first output with an axis decides, and outputs without its letter are pending") {
  const Expression both("m k -> m k, m", 1, 2);
  const Case c{both.def, {{{6, 4}, "-, -"}}, {}, {{6, 4}, {6}}, ""};
  CHECK(run(c, {"-, a", "a"}).text == "[-, a] -> [-, a], [-] sum(a)");
  CHECK(run(c, {nullptr, "a"}).text == "[a, -] -> [a, -], [a]");
}

TEST_CASE("reverse: rules in C++ have it too, and reshape keeps the axes whose parts stay exact") {
  const Dims d{6, 4};
  CHECK(run({ops::gather, {{d, "-, -"}, {{3}, "-", DType::int64}}, {Scalar(0)}, {{3, 4}}, ""}, {"a, b"}).text ==
        "[-, b], [a] -> [a, b]");
  const auto reshape = [](const Dims& in, const Dims& out, const char* wanted) {
    std::string whole = "-";
    for (int i = 1; i < in.rank(); ++i) whole += ", -";
    const Inferred result = run({ops::reshape, {{in, whole.c_str()}}, {IntArray(out)}, {out}, ""}, {wanted});
    CHECK_FALSE(result.relayout);
    return result.text;
  };
  CHECK(reshape({24}, {6, 4}, "a, -") == "[a] -> [a, -]");
  CHECK(reshape({6, 4}, {24}, "b+a") == "[b+a, -] -> [b+a]");
  CHECK(reshape({5, 4}, {20}, "a") == "[-, -] -> [-]");
  CHECK(reshape({6, 4}, {24}, "- | max(a)") == "[-, -] -> [-]");
  CHECK_THAT(error_of(
                 [&] {
                   run({ops::relu, {{d, "-, -"}}, {}, {d}, ""}, {"a, b", "a, b"});
                 },
                 ErrorCode::layout),
             Catch::Contains("1"));
}

TEST_CASE(
    "reverse: a call whose inputs have the layouts that reverse inference gives keeps them and gives those outputs") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto random_layout = [&](int rank) {
    std::vector<std::string> dims(static_cast<size_t>(rank), "-");
    for (const char* axis : {"a", "b"}) {
      const int d = pick(-1, rank - 1);
      if (d < 0) continue;
      std::string& dim = dims[static_cast<size_t>(d)];
      dim = dim == "-" ? axis : pick(0, 1) == 0 ? dim + "+" + axis : axis + ("+" + dim);
    }
    std::string text;
    for (const std::string& dim : dims) text += (text.empty() ? "" : ", ") + dim;
    return text;
  };
  const Dims d{5, 1, 7}, wide{7, 5, 1, 7}, vector{7};
  const std::vector<AttrValue> norm = {AttrValue(1e-5), AttrValue(int64_t{2})};
  const std::vector<Case> cases = {
      {ops::add, {{d, ""}, {vector, ""}}, {}, {d}, ""},
      {ops::add, {{d, ""}, {{7, 1, 4, 1}, ""}}, {}, {{7, 5, 4, 7}}, ""},
      {ops::matmul, {{{3, 4, 7}, ""}, {{6, 7}, ""}}, {kNo, kYes}, {{3, 4, 6}}, ""},
      {ops::matmul, {{vector, ""}, {{3, 7, 6}, ""}}, {kYes, kNo}, {{3, 6}}, ""},
      {ops::softmax, {{d, ""}}, {int64_t{0}}, {d}, ""},
      {ops::sum, {{wide, ""}}, {IntArray{-1, 1}, kYes}, {{7, 1, 1, 1}}, ""},
      {ops::max, {{wide, ""}}, {IntArray{0}, kNo}, {d}, ""},
      {ops::layer_norm, {{d, ""}, {vector, ""}, {vector, ""}}, norm, {d, {5, 1}, {5, 1}}, ""},
      {ops::transpose, {{d, ""}}, {IntArray{2, 0, 1}}, {{7, 5, 1}}, ""},
      {ops::stack, {{d, ""}, {d, ""}}, {int64_t{-2}}, {{5, 1, 2, 7}}, "", {2}},
      {ops::concat, {{d, ""}, {d, ""}}, {Scalar(-1)}, {{5, 1, 14}}, "", {2}},
      {ops::split, {{d, ""}}, {IntArray{3, 4}, Scalar(2)}, {{5, 1, 3}, {5, 1, 4}}, ""},
      {ops::embedding, {{{5, 3}, "", DType::int64}, {{9, 7}, ""}}, {int64_t{-1}}, {{5, 3, 7}}, ""},
  };
  const auto whole = [](int rank) {
    std::string text;
    for (int d = 0; d < rank; ++d) text += d == 0 ? "-" : ", -";
    return text;
  };
  for (int round = 0; round < 600; ++round) {
    Case c = cases[static_cast<size_t>(pick(0, static_cast<int>(cases.size()) - 1))];
    std::vector<std::string> texts;
    std::vector<const char*> wanted;
    texts.reserve(c.inputs.size() + c.outputs.size());
    for (In& in : c.inputs) in.layout = texts.emplace_back(whole(in.dims.rank())).c_str();
    for (const Dims& out : c.outputs) wanted.push_back(texts.emplace_back(random_layout(out.rank())).c_str());
    const Inferred reverse = run(c, wanted);
    std::vector<std::string> layouts;
    for (const Layout& layout : reverse.inputs) {
      const std::string& text = DistSpec::make(layout)->text();
      layouts.push_back(text.substr(1, text.find(']') - 1));
    }
    for (size_t i = 0; i < layouts.size(); ++i) c.inputs[i].layout = layouts[i].c_str();
    INFO(c.op.name << " wants " << wanted[0]);
    CHECK(run(c).text == reverse.text);
  }
}

// --- gradients

TEST_CASE("gradients: dims that the forward op broadcast are pending sums") {
  const Expression add_grad("..., ..., ... -> ..., ...", 3, 2);
  const Dims d{6, 4};
  check_cases({
      {add_grad.def,
       {{d, "-, -"}, {{1, 4}, "-, -"}, {d, "a, b"}},
       {},
       {d, {1, 4}},
       "[a, b], [-, b], [a, b] -> [a, b], [-, b] sum(a)"},
      {add_grad.def, {{d, "-, -"}, {{4}, "-"}, {d, "a, b"}}, {}, {d, {4}}, "[a, b], [b], [a, b] -> [a, b], [b] sum(a)"},
      {add_grad.def,
       {{d, "-, -"}, {{}, ""}, {d, "a, b"}},
       {},
       {d, {}},
       "[a, b], [], [a, b] -> [a, b], [] sum(a) sum(b)"},
      {add_grad.def, {{d, "-, -"}, {d, "-, -"}, {d, "a, b"}}, {}, {d, d}, "[a, b], [a, b], [a, b] -> [a, b], [a, b]"},
      {add_grad.def,
       {{{6, 1}, "-, -"}, {{1, 4}, "-, -"}, {d, "a, b"}},
       {},
       {{6, 1}, {1, 4}},
       "[a, -], [-, b], [a, b] -> [a, -] sum(b), [-, b] sum(a)"},
  });
}

TEST_CASE("gradients: of matmul, sums, maxima and normalisation") {
  const Expression product("... m? k ^tx, ... k n? ^ty, ... m? n? -> ... m? k ^tx, ... k n? ^ty", 3, 2, kFlags);
  const Expression sum("..., ...{-axis?keep} -> ...", 2, 1, kAxisKeep),
      alone("...{-axis?keep} -> ... ~ linear", 1, 1, kAxisKeep);
  const Expression norm("...{!axis..}, 1, 1, ...{-axis..}, ...{!axis..} -> ...{!axis..}, 1:sum, 1:sum", 5, 3, kAxis);
  const Dims x{5, 6, 4}, y{4, 8}, out{5, 6, 8};
  check_cases({
      {product.def,
       {{x, "-, -, -"}, {y, "-, -"}, {out, "a, -, b"}},
       {kNo, kNo},
       {x, y},
       "[a, -, -], [-, b], [a, -, b] -> [a, -, -] sum(b), [-, b] sum(a)"},
      {product.def,
       {{x, "-, a, -"}, {{8, 4}, "-, -"}, {out, "-, a, -"}},
       {kNo, kYes},
       {x, {8, 4}},
       "[-, a, -], [-, -], [-, a, -] -> [-, a, -], [-, -] sum(a)"},
      {product.def,
       {{{4}, "-"}, {y, "-, b"}, {{8}, "b"}},
       {kNo, kNo},
       {{4}, y},
       "[-], [-, b], [b] -> [-] sum(b), [-, b]"},
      {sum.def, {{x, "-, -, -"}, {{5, 4}, "a, b"}}, {IntArray{1}, kNo}, {x}, "[a, -, b], [a, b] -> [a, -, b]"},
      {sum.def,
       {{x, "-, b, -"}, {{5, 1, 4}, "a, -, -"}},
       {IntArray{-2}, kYes},
       {x},
       "[a, b, -], [a, -, -] -> [a, b, -]"},
      {alone.def, {{{5, 4}, "a, - | sum(b)"}}, {IntArray{1}, kNo}, {x}, "[a, -] sum(b) -> [a, -, -] sum(b)"},
      {norm.def,
       {{x, "a, b, -"}, {{24}, "-"}, {{24}, nullptr}, {{5}, "-"}, {x, "-, -, -"}},
       {int64_t{1}},
       {x, {24}, {24}},
       "[a, -, -], [-], [], [a], [a, -, -] -> [a, -, -], [-] sum(a), [-] sum(a)"},
  });
}

}  // namespace expression_test
