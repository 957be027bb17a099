// Random op x layouts x mesh x sizes against one rank, and random programs of views and writes. Data are small
// integers, so results are compared bit for bit wherever the op is exact on them. The calls are in
// runtime/shard/testing/op_cases_*.cc. SHARD_PROPERTY_CASES and SHARD_PROPERTY_SEED select other runs; docs/rules.md has
// the one of 100,000 cases.
#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "shard/testing/rule_check.h"
#include "support/random_runs.h"

namespace property_test {

using namespace shard;
using namespace shard::testing;
using namespace shard::test;

namespace {

constexpr int kMostRanks = 8;

/// The worlds of all sizes, created when they are first used.
CallChecker& ranks_of(int count) {
  static std::vector<CallChecker> checkers = [] {
    std::vector<CallChecker> all;
    for (int n = 0; n <= kMostRanks; ++n) all.emplace_back(n);
    return all;
  }();
  return checkers[static_cast<size_t>(count)];
}

/// The reduce types that an input can be pending with.
std::vector<ReduceType> types_of(const CaseInput& input) {
  std::vector<ReduceType> types = {ReduceType::sum, ReduceType::max, ReduceType::min, ReduceType::prod};
  if (input.dtype != DType::boolean) types.push_back(ReduceType::avg);
  if (input.low <= 1 && input.high >= 0) types.insert(types.end(), {ReduceType::any, ReduceType::all});
  return types;
}

std::string describe(const std::string& what, const CaseCall& call, const Layouts& layouts, const RandomMesh& on) {
  std::string text = what;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    text += " " + to_string(Meta{call.inputs[i].dims, call.inputs[i].dtype}) + " " + layouts[i]->text();
  return text + " on " + on.text();
}

/// Empty, or what is wrong.
std::string try_op(uint64_t seed) {
  static const OpCases table = op_cases();
  static const std::vector<Accepted> accepted = accepted_by_rules();
  Random random(seed);
  const RandomMesh on(random, kMostRanks);
  const OpCase& one = table[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(table.size()) - 1))];
  Draw draw(random(), one.dtypes[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(one.dtypes.size()) - 1))],
            on.sizes());
  const CaseCall call = one.make(draw);
  Layouts layouts;
  for (const CaseInput& input : call.inputs)
    layouts.push_back(random_spec(random, on.mesh, input.dims.rank(), types_of(input)));
  const Outcome outcome = ranks_of(on.ranks).check(call, {layouts}, one.ulps, random())[0];
  if (outcome.kind == Outcome::Kind::right) return "";
  if (outcome.kind == Outcome::Kind::refused && outcome.code == ErrorCode::layout &&
      find_accepted(accepted, Accepted::What::refusal, one.op, draw.dtype, layouts) != nullptr)
    return "";
  return describe(one.op + " (" + one.name + ")", call, layouts, on) + ": " + outcome.text;
}

/// Views of x and y, writes through some of them, and reads: a program with a well-defined result on plain tensors.
/// All tensors are returned at the end, x and y themselves last.
CaseCall random_program(uint64_t seed, const Dims& dims) {
  const CaseInput x{dims, DType::float32, -3, 3};
  return {{x, x}, [seed](Tensors& t) {
            Random random(seed);
            Tensors all = t;
            for (int64_t steps = pick(random, 2, 6); steps > 0; --steps) {
              Tensor chosen = all[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(all.size()) - 1))];
              Tensor other = all[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(all.size()) - 1))];
              switch (pick(random, 0, 7)) {
                case 0: all.push_back(reshape(chosen, {-1})); break;
                case 1: all.push_back(unsqueeze(chosen, {0})); break;
                case 2: all.push_back(flatten(chosen, 0, -1)); break;
                case 3: relu_(chosen); break;
                case 4: scale_(chosen, -2, 0); break;
                case 5: scale_(chosen, 1, 1); break;
                case 6:
                  if (chosen.dims() == other.dims()) add_(chosen, other);
                  break;
                default: all.push_back(sum(chosen, {-1}, true));
              }
            }
            Tensors results;
            for (const Tensor& tensor : all) results.push_back(assign(tensor));
            results.insert(results.end(), t.begin(), t.end());
            return results;
          }};
}

std::string try_program(uint64_t seed) {
  Random random(seed);
  const RandomMesh on(random, kMostRanks);
  const std::vector<int64_t> sizes = on.sizes();
  Draw draw(random(), DType::float32, sizes);
  const CaseCall call = random_program(random(), draw.dims_above_0(2));
  // A result that is written into a pending average is rounded, one written into a pending any is refused; single
  // ops test these.
  const std::vector<ReduceType> types = {ReduceType::sum, ReduceType::max, ReduceType::min};
  const Layouts layouts = {random_spec(random, on.mesh, 2, types), random_spec(random, on.mesh, 2, types)};
  const uint64_t values = random();
  for (const ViewPolicy policy : {ViewPolicy::sync, ViewPolicy::strict}) {
    const Outcome outcome = ranks_of(on.ranks).check(call, {layouts}, 0, values, {.view = policy})[0];
    if (outcome.kind == Outcome::Kind::right) continue;
    const bool told = outcome.kind == Outcome::Kind::refused &&
                      (outcome.code == ErrorCode::view_of_copy || outcome.code == ErrorCode::stale_view);
    if (policy == ViewPolicy::strict && told) continue;
    return describe(
               policy == ViewPolicy::sync ? "a program under ViewPolicy::sync," : "a program under ViewPolicy::strict,",
               call, layouts, on) +
           ": " + outcome.text;
  }
  return "";
}

}  // namespace

TEST_CASE("property: a random op on random layouts equals the same op on one rank, bit for bit") {
  try_seeds("shard_tests_call", "property: a random op*", try_op, 2000);
}

TEST_CASE("property: a random program of views and writes means what it means on one rank, or is told") {
  try_seeds("shard_tests_call", "property: a random program*", try_program, 500);
}

}  // namespace property_test
