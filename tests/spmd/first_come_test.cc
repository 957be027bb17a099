// The solver of shard_spmd_cases --compat: this library's rules, decided without costs.
#include <catch2/catch.hpp>

#include "first_come.h"
#include "shard/core/error.h"
#include "shard/ops/math_ops.h"
#include "shard/ops/nn_ops.h"
#include "shard/ops/shape_ops.h"
#include "shard/spmd/notation.h"
#include "spmd/rule_case.h"

namespace first_come_test {

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;
using spmd_cases::FirstComeSolver;
using spmd_cases::PeerOptions;

namespace {

Inferred run_as_peer(Case c, const PeerOptions& options, const std::vector<const char*>& wanted = {}) {
  const FirstComeSolver solver(options);
  c.solver = &solver;
  return run(c, wanted);
}

}  // namespace

TEST_CASE("first come: an axis stays with the index that shows it first, whatever that moves") {
  // With costs, the larger y would keep the axis.
  Case c{ops::matmul, {{{64, 512}, "a, -"}, {{512, 4096}, "-, a"}}, {kNo, kNo}, {{64, 4096}}, ""};
  CHECK(run(c).text == "[-, -], [-, a] -> [-, a]");
  PeerOptions options;
  CHECK(run_as_peer(c, options).text == "[a, -], [-, -] -> [a, -]");
  options.visit = {1, 0};
  CHECK(run_as_peer(c, options).text == "[-, -], [-, a] -> [-, a]");
  options.conflict = PeerOptions::Conflict::error;
  CHECK_THROWS_WITH(run_as_peer(c, options),
                    Catch::Contains("[matmul]") && Catch::Contains("mesh axis 'a' shards two indices"));
}

TEST_CASE("first come: two axes on one index are an error, which costs resolve") {
  Case c{ops::matmul, {{{64, 32}, "-, a"}, {{32, 48}, "b, -"}}, {kNo, kNo}, {{64, 48}}, ""};
  CHECK(run(c).text == "[-, a+b], [a+b, -] -> [-, -] sum(a) sum(b)");
  PeerOptions options;
  CHECK_THROWS_WITH(run_as_peer(c, options),
                    Catch::Contains("[matmul]") && Catch::Contains("two mesh axes, 'a' and 'b'"));
}

TEST_CASE("first come: pending reductions are done first, pass, or are copied to the outputs alone") {
  Case c{ops::transpose, {{{6, 4}, "-, b | sum(a)"}}, {IntArray{1, 0}}, {{4, 6}}, ""};
  PeerOptions options;
  CHECK(run_as_peer(c, options).text == "[-, b] -> [b, -]");
  options.pending = PeerOptions::Pending::pass;
  CHECK(run_as_peer(c, options).text == "[-, b] sum(a) -> [b, -] sum(a)");
  options.pending = PeerOptions::Pending::copy;
  CHECK(run_as_peer(c, options).text == "[-, b] -> [b, -] sum(a)");
  options.untouched = 1;
  CHECK(run_as_peer(c, options).text == "[-, b] sum(a) -> [b, -] sum(a)");
}

TEST_CASE("first come: whole dims take no axis, unless they claim it first") {
  Case c{ops::softmax, {{{6, 4}, "-, -"}}, {int64_t{1}}, {{6, 4}}, ""};
  PeerOptions options;
  CHECK(run_as_peer(c, options, {"b, a"}).text == "[b, -] -> [b, -]");
  Case parts{ops::split, {{{6, 4}, "-, -"}}, {IntArray{2, 2}, int64_t{1}}, {{6, 2}, {6, 2}}, ""};
  options = {};
  CHECK(run_as_peer(parts, options, {"-, a", "a, -"}).text == "[a, -] -> [a, -], [a, -]");
  options.whole_claims = true;
  CHECK(run_as_peer(parts, options, {"-, a", "a, -"}).text == "[-, -] -> [-, -], [-, -]");
  options.keeps_outputs = true;
  CHECK(run_as_peer(parts, options, {"-, a", "a, -"}).text == "[-, -] -> [-, a], [a, -]");
}

TEST_CASE("align: arguments get one layout, by the elements that move and never by a dim that is too small") {
  const Dims d{4, 8};
  Case c{ops::concat, {{d, "a, -"}, {d, "-, -"}, {{2, 8}, "-, a"}}, {int64_t{0}}, {{10, 8}}, "", {3}};
  PeerOptions options;
  options.conflict = PeerOptions::Conflict::align;
  CHECK(run_as_peer(c, options).text == "[-, a], [-, a], [-, a] -> [-, a]");
  c.attrs = {int64_t{1}};
  c.inputs = {{{4, 8}, "b, a"}, {{4, 9}, "b, -"}};
  c.slots = {2};
  c.outputs = {{4, 17}};
  // a is no longer on the joined dim, and the other dim already has b.
  CHECK(run_as_peer(c, options).text == "[b, -], [b, -] -> [b, -]");
  c.inputs = {{{2, 8}, "-, b"}, {{2, 9}, "-, -"}};
  // Two rows are too few for the three processes of b.
  CHECK(run_as_peer(c, options).text == "[-, -], [-, -] -> [-, -]");
}

}  // namespace first_come_test
