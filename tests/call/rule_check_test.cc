// The verifier of placement rules can fail: it finds rules that are wrong, missing, or suboptimal on purpose, and
// nothing in a correct one. A sample of the rules of all ops is correct (shard_verify_rules --all verifies all of
// them).
#include <catch2/catch.hpp>

#include "shard/call/dist_call.h"
#include "shard/ops/math_dense.h"
#include "shard/ops/nn_dense.h"
#include "shard/shard.h"
#include "shard/testing/rule_check.h"
#include "shard/testing/shards.h"

namespace rule_check_test {

using namespace shard;
using namespace shard::testing;

namespace {

// Ops of this test, which compute relu and softmax, under rules of their own.
constexpr OpDef kRightRelu = {.name = "right_relu",
                              .inputs = slots<"x">,
                              .outputs = slots<"out">,
                              .rule = "... -> ...",
                              .commutes = Commutes::jointly,
                              .commute_types = 0x6};
constexpr OpDef kLinearRelu = {.name = "linear_relu",
                               .inputs = slots<"x">,
                               .outputs = slots<"out">,
                               .rule = "... -> ...",
                               .commutes = Commutes::jointly,
                               .commute_types = 0x7};
constexpr OpDef kWholeRelu = {.name = "whole_relu",
                              .inputs = slots<"x">,
                              .outputs = slots<"out">,
                              .rule = "!m !n -> !m !n",
                              .commutes = Commutes::jointly,
                              .commute_types = 0x6};
constexpr OpDef kSilentRelu = {
    .name = "silent_relu", .inputs = slots<"x">, .outputs = slots<"out">, .rule = "... -> ..."};
constexpr OpDef kNoRule = {.name = "no_rule", .inputs = slots<"x">, .outputs = slots<"out">};
constexpr OpDef kCutSoftmax = {
    .name = "cut_softmax", .inputs = slots<"x">, .outputs = slots<"out">, .rule = "... -> ..."};

template <const OpDef& op, auto infer, auto dense, auto plain>
Tensor run_as(const Tensor& x) {
  if (!x.is_dist()) return plain(x);
  call::DistCall distributed(op, x);
  return distributed.run(infer, [&] { return dense(distributed, distributed.meta(0), distributed[0]); });
}

Meta infer_softmax(const OpContext& ctx, const Meta& x) { return infer::softmax(ctx, x, -1); }
DenseTensor dense_softmax(const OpContext& ctx, const Meta& out, const DenseTensor& x) {
  return dense::softmax(ctx, out, x, -1);
}
Tensor plain_relu(const Tensor& x) { return relu(x); }
Tensor plain_softmax(const Tensor& x) { return softmax(x, -1); }

RuleReport report_of(Unary f) {
  OpCases cases;
  add_unary(cases, "op", {DType::float32}, f, nullptr);
  // Only what each test is about: numbers that are all 0 or 1 commute with more reductions.
  return check_rules(cases, {{Accepted::What::move, "op", {"any", "all"}, "accidents"}}, {});
}

std::string first_of(const RuleReport& report, Verdict verdict) {
  for (const RuleFinding& finding : report.findings) {
    if (finding.verdict == verdict && finding.accepted.empty())
      return finding.layouts + ": " + finding.command + ": " + finding.detail;
  }
  return "";
}

/// The average of element `e` over `axes`, one after the other, as float32 has it.
float average(const ProcessMesh& mesh, const std::vector<DenseTensor>& shards, int64_t e, std::vector<int> axes,
              Coordinate at = {}) {
  if (axes.empty()) {
    int process = 0;
    for (int axis = 0; axis < mesh.rank(); ++axis) process = process * mesh.size(axis) + at[static_cast<size_t>(axis)];
    return shards[static_cast<size_t>(process)].data<float>()[e];
  }
  const int axis = axes.back();
  axes.pop_back();
  float total = 0;
  for (int k = 0; k < mesh.size(axis); ++k) {
    at[static_cast<size_t>(axis)] = k;
    total += average(mesh, shards, e, axes, at);
  }
  return total / static_cast<float>(mesh.size(axis));
}

}  // namespace

TEST_CASE("contributions to averages over several axes have exactly the value, whichever axis is reduced first") {
  const auto* mesh = ProcessMesh::make({3, 2}, {}, {"a", "b"});
  Layout layout(mesh, 1);
  layout.partial = {ReduceType::avg, ReduceType::avg};
  Random random(1);
  const CaseInput input{{64}, DType::float32};
  const DenseTensor value = draw_value(input, layout, random);
  const std::vector<DenseTensor> shards = split_value(value, layout, random);
  for (int64_t e = 0; e < value.numel(); ++e) {
    INFO("element " << e);
    CHECK(average(*mesh, shards, e, {0, 1}) == value.data<float>()[e]);
    CHECK(average(*mesh, shards, e, {1, 0}) == value.data<float>()[e]);
  }
}

TEST_CASE("a right rule has no findings") {
  const RuleReport report = report_of(run_as<kRightRelu, infer::relu, dense::relu, plain_relu>);
  INFO(to_text(report));
  const RuleCounts total = report.total();
  CHECK(total.wrong + total.missing + total.suboptimal == 0);
  // Replicated, two dims, seven reduce types; on two and three ranks.
  CHECK(total.correct + total.accepted == 20);
}

TEST_CASE("a commutation that does not hold is found, with a command that shows it") {
  const RuleReport report = report_of(run_as<kLinearRelu, infer::relu, dense::relu, plain_relu>);
  CHECK(report.total().wrong == 2);
  const std::string finding = first_of(report, Verdict::wrong);
  CHECK(finding.starts_with("[-, -] sum(a): "));
  CHECK_THAT(finding, Catch::Contains("shard_verify_rules --op op --case \"of two dims\" --dtype float32 --layouts "
                                      "\"[-, -] sum(a)\" --ranks 2 --seed 1"));
}

TEST_CASE("a rule that lets softmax shard its axis is wrong") {
  const RuleReport report = report_of(run_as<kCutSoftmax, infer_softmax, dense_softmax, plain_softmax>);
  CHECK(report.total().wrong == 2);
  CHECK(first_of(report, Verdict::wrong).starts_with("[-, a]: "));
}

TEST_CASE("a rule that gathers what may be sharded is suboptimal, and so is a commutation that is not declared") {
  const RuleReport gathers = report_of(run_as<kWholeRelu, infer::relu, dense::relu, plain_relu>);
  CHECK(gathers.total().wrong == 0);
  CHECK(gathers.total().suboptimal == 4);
  CHECK(first_of(gathers, Verdict::suboptimal).starts_with("[a, -]: "));
  const RuleReport reduces = report_of(run_as<kSilentRelu, infer::relu, dense::relu, plain_relu>);
  CHECK(reduces.total().wrong == 0);
  CHECK(reduces.total().suboptimal == 4);
  CHECK(first_of(reduces, Verdict::suboptimal).starts_with("[-, -] max(a): "));
}

TEST_CASE("an op without a rule is missing") {
  const RuleReport report = report_of(run_as<kNoRule, infer::relu, dense::relu, plain_relu>);
  CHECK(report.total().missing == 20);
  CHECK_THAT(first_of(report, Verdict::missing), Catch::Contains("has no placement rule"));
}

TEST_CASE("one choice of layouts is tried alone, with the values it had among all") {
  OpCases cases;
  add_unary(cases, "op", {DType::float32, DType::int64}, run_as<kLinearRelu, infer::relu, dense::relu, plain_relu>,
            nullptr);
  const RuleReport all = check_rules(cases, {}, {});
  RuleCheckOptions options{
      .op = "op", .name = "of two dims", .dtype = "int64", .layouts = "[-, -] sum(a)", .ranks = {3}};
  const RuleReport one = check_rules(cases, {}, options);
  REQUIRE(one.findings.size() == 1);
  CHECK(one.findings[0].verdict == Verdict::wrong);
  bool same = false;
  for (const RuleFinding& finding : all.findings)
    same = same || (finding.command == one.findings[0].command && finding.detail == one.findings[0].detail);
  CHECK(same);
}

TEST_CASE("the report counts per op, as text and as JSON") {
  RuleReport report = report_of(run_as<kLinearRelu, infer::relu, dense::relu, plain_relu>);
  CHECK_THAT(to_text(report), Catch::Contains("wrong op: [-, -] sum(a) (2 times): output 0"));
  CHECK_THAT(to_json(report), Catch::Contains("\"wrong\": 2, \"missing\": 0"));
}

TEST_CASE("no rule of this library is wrong or missing on a sample of all layouts", "[slow_in_asan][slow_in_tsan]") {
  const RuleReport report =
      check_rules(op_cases(), accepted_by_rules(), {.ranks = {3}, .trials = 2, .most_layouts = 5});
  INFO(to_text(report));
  const RuleCounts total = report.total();
  CHECK(total.wrong == 0);
  CHECK(total.missing == 0);
  CHECK(total.correct > 2000);
}

}  // namespace rule_check_test
