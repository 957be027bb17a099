// RuleOptions: the same rules, decided without costs.
#include <catch2/catch.hpp>

#include "core/error.h"
#include "ops/math_ops.h"
#include "ops/nn_ops.h"
#include "ops/shape_ops.h"
#include "spmd/notation.h"
#include "spmd/rule_case.h"

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;

namespace {

RuleOptions first_come() {
  RuleOptions options;
  options.conflict = RuleOptions::Conflict::first;
  return options;
}

}  // namespace

TEST_CASE("first come: an axis stays with the index that shows it first, whatever that moves") {
  // By cost the larger y would keep the axis.
  Case c{ops::matmul, {{{64, 512}, "a, -"}, {{512, 4096}, "-, a"}}, {kNo, kNo}, {{64, 4096}}, ""};
  CHECK(run(c).text == "[-, -], [-, a] -> [-, a]");
  c.options = first_come();
  CHECK(run(c).text == "[a, -], [-, -] -> [a, -]");
  c.options.visit = {1, 0};
  CHECK(run(c).text == "[-, -], [-, a] -> [-, a]");
  c.options.conflict = RuleOptions::Conflict::error;
  CHECK_THROWS_WITH(run(c), Catch::Contains("[matmul]") && Catch::Contains("mesh axis 'a' shards two indices"));
}

TEST_CASE("first come: two axes on one index are an error, which costs resolve") {
  Case c{ops::matmul, {{{64, 32}, "-, a"}, {{32, 48}, "b, -"}}, {kNo, kNo}, {{64, 48}}, ""};
  CHECK(run(c).text == "[-, a+b], [a+b, -] -> [-, -] sum(a) sum(b)");
  c.options = first_come();
  CHECK_THROWS_WITH(run(c), Catch::Contains("[matmul]") && Catch::Contains("two mesh axes, 'a' and 'b'"));
}

TEST_CASE("first come: pending reductions are done first, pass, or are copied to the outputs alone") {
  Case c{ops::transpose, {{{6, 4}, "-, b | sum(a)"}}, {IntArray{1, 0}}, {{4, 6}}, ""};
  c.options = first_come();
  CHECK(run(c).text == "[-, b] -> [b, -]");
  c.options.pending = RuleOptions::Pending::pass;
  CHECK(run(c).text == "[-, b] sum(a) -> [b, -] sum(a)");
  c.options.pending = RuleOptions::Pending::copy;
  CHECK(run(c).text == "[-, b] -> [b, -] sum(a)");
  c.options.untouched = 1;
  CHECK(run(c).text == "[-, b] sum(a) -> [b, -] sum(a)");
}

TEST_CASE("first come: whole dims take no axis, unless they claim it first") {
  Case c{ops::softmax, {{{6, 4}, "-, -"}}, {int64_t{1}}, {{6, 4}}, ""};
  c.options = first_come();
  CHECK(run(c, {"b, a"}).text == "[b, -] -> [b, -]");
  Case pieces{ops::split, {{{6, 4}, "-, -"}}, {IntArray{2, 2}, int64_t{1}}, {{6, 2}, {6, 2}}, ""};
  pieces.options = first_come();
  CHECK(run(pieces, {"-, a", "a, -"}).text == "[a, -] -> [a, -], [a, -]");
  pieces.options.whole_claims = true;
  CHECK(run(pieces, {"-, a", "a, -"}).text == "[-, -] -> [-, -], [-, -]");
  pieces.options.keeps_outputs = true;
  CHECK(run(pieces, {"-, a", "a, -"}).text == "[-, -] -> [-, a], [a, -]");
}

TEST_CASE("align: arguments get one layout, by the elements that move and never by a dim that is too small") {
  const Dims d{4, 8};
  Case c{ops::concat, {{d, "a, -"}, {d, "-, -"}, {{2, 8}, "-, a"}}, {int64_t{0}}, {{10, 8}}, "", {3}};
  c.options = first_come();
  c.options.conflict = RuleOptions::Conflict::align;
  CHECK(run(c).text == "[-, a], [-, a], [-, a] -> [-, a]");
  c.attrs = {int64_t{1}};
  c.inputs = {{{4, 8}, "b, a"}, {{4, 9}, "b, -"}};
  c.slots = {2};
  c.outputs = {{4, 17}};
  // a is not on the joined dim any more, and the other dim has b already.
  CHECK(run(c).text == "[b, -], [b, -] -> [b, -]");
  c.inputs = {{{2, 8}, "-, b"}, {{2, 9}, "-, -"}};
  // Two rows are too few for the three processes of b.
  CHECK(run(c).text == "[-, -], [-, -] -> [-, -]");
}

TEST_CASE("leading dims: a reshape keeps the first dim of a group where it splits evenly, and no other") {
  Case c{ops::reshape, {{{4, 6}, "a, b"}}, {IntArray{24}}, {{24}}, ""};
  c.options = first_come();
  c.options.leading_dims = true;
  CHECK(run(c).text == "[a, -] -> [a]");
  CHECK(run(c, {"b"}).text == "[-, -] -> [-]");
  CHECK(run(c, {"a"}).text == "[a, -] -> [a]");
  Case back{ops::reshape, {{{24}, "a"}}, {IntArray{3, 8}}, {{3, 8}}, ""};
  back.options = c.options;
  CHECK(run(back).text == "[-] -> [-, -]");
  Case ones{ops::unsqueeze, {{{1, 6}, "a, b"}}, {IntArray{0}}, {{1, 1, 6}}, ""};
  ones.options = c.options;
  CHECK(run(ones).text == "[a, b] -> [a, -, b]");
  ones.options.ones_whole = true;
  CHECK(run(ones).text == "[-, b] -> [-, -, b]");
}

TEST_CASE("a rule that names too few dims is an error with the argument's rank") {
  OpDef op = Expression("..., ... -> ...").def;
  register_rule("ForgetfulInferSpmd", [](const RuleArgs& args) {
    Notation n;
    n.inputs = {fresh_letters(n, args.tensors[0].meta.dims), {}};
    n.outputs = {n.inputs[0]};
    return solve(args, n);
  });
  op.rule = "ForgetfulInferSpmd";
  CHECK_THROWS_WITH(run({op, {{{6, 4}, "a, -"}, {{6, 4}, "-, -"}}, {}, {{6, 4}}, ""}),
                    Catch::Contains("argument 1 has 2 dims, but its placement rule names 0"));
}
