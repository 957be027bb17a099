// Random op x layouts x mesh x sizes against one rank, and random programs of views and writes. Data are small integers, so results
// are compared bit for bit wherever the op is exact on them. What is called stands in runtime/testing/op_cases_*.cc.
// SHARD_PROPERTY_CASES and SHARD_PROPERTY_SEED choose other runs; docs/rules.md has the one of 100,000 cases.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "api.h"
#include "testing/rule_check.h"

using namespace shard;
using namespace shard::testing;

namespace {

constexpr int kMostRanks = 8;

/// The worlds of all sizes, made when they are first used.
CallChecker& ranks_of(int count) {
  static std::vector<CallChecker> checkers = [] {
    std::vector<CallChecker> all;
    for (int n = 0; n <= kMostRanks; ++n) all.emplace_back(n);
    return all;
  }();
  return checkers[static_cast<size_t>(count)];
}

/// A mesh of 1 to 3 axes in a world of up to 8 ranks, of which some may be outside of it, in any order.
struct RandomMesh {
  int ranks = 1;
  const ProcessMesh* mesh = nullptr;

  explicit RandomMesh(Random& random) {
    std::vector<int> shape;
    int size = 1;
    for (int64_t axes = pick(random, 1, 3); axes > 0; --axes) {
      shape.push_back(static_cast<int>(pick(random, 1, std::min(axes == 1 && shape.empty() ? kMostRanks : 4, kMostRanks / size))));
      size *= shape.back();
    }
    ranks = std::min(kMostRanks, size + static_cast<int>(pick(random, 0, 2)) / 2);
    std::vector<int> processes(static_cast<size_t>(ranks));
    std::iota(processes.begin(), processes.end(), 0);
    if (pick(random, 0, 1) == 1) std::shuffle(processes.begin(), processes.end(), random);
    processes.resize(static_cast<size_t>(size));
    mesh = ProcessMesh::make(shape, processes);
  }

  std::vector<int64_t> sizes() const {
    int longest = 1;
    for (int axis = 0; axis < mesh->rank(); ++axis) longest = std::max(longest, mesh->size(axis));
    std::vector<int64_t> all(static_cast<size_t>(2 * longest + 2));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

/// Each axis replicated, on a random dim in a random order, or pending with one of `types`.
const DistSpec* random_spec(Random& random, const ProcessMesh* mesh, int rank, const std::vector<ReduceType>& types) {
  Layout layout(mesh, rank);
  std::vector<int> axes(static_cast<size_t>(mesh->rank()));
  std::iota(axes.begin(), axes.end(), 0);
  std::shuffle(axes.begin(), axes.end(), random);
  for (int axis : axes) {
    const int64_t choice = pick(random, -2, rank - 1);
    if (choice >= 0) layout.dims[static_cast<size_t>(choice)].push_back(axis);
    if (choice == -2) layout.partial[static_cast<size_t>(axis)] = types[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(types.size()) - 1))];
  }
  return DistSpec::make(layout);
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
  for (size_t i = 0; i < call.inputs.size(); ++i) text += " " + to_string(Meta{call.inputs[i].dims, call.inputs[i].dtype}) + " " + layouts[i]->text();
  return text + " on " + on.mesh->describe() + " of " + std::to_string(on.ranks) + " ranks";
}

/// Nothing, or what is wrong.
std::string try_op(uint64_t seed) {
  static const OpCases table = op_cases();
  static const std::vector<Accepted> accepted = accepted_by_rules();
  Random random(seed);
  const RandomMesh on(random);
  const OpCase& one = table[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(table.size()) - 1))];
  Draw draw(random(), one.dtypes[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(one.dtypes.size()) - 1))], on.sizes());
  const CaseCall call = one.make(draw);
  Layouts layouts;
  for (const CaseInput& input : call.inputs) layouts.push_back(random_spec(random, on.mesh, input.dims.rank(), types_of(input)));
  const Outcome outcome = ranks_of(on.ranks).check(call, {layouts}, one.ulps, random())[0];
  if (outcome.kind == Outcome::Kind::right) return "";
  if (outcome.kind == Outcome::Kind::refused && find_accepted(accepted, Accepted::What::refusal, one.op, draw.dtype, layouts) != nullptr) return "";
  return describe(one.op + " (" + one.name + ")", call, layouts, on) + ": " + outcome.text;
}

/// Views of x and y, writes through some of them, and reads: a program that has one meaning for plain tensors. All tensors are
/// returned at the end, x and y themselves last.
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
  const RandomMesh on(random);
  const std::vector<int64_t> sizes = on.sizes();
  Draw draw(random(), DType::float32, sizes);
  const CaseCall call = random_program(random(), draw.dims_above_0(2));
  // A result that is written into a pending average is rounded, one written into a pending any is refused: tried by op.
  const std::vector<ReduceType> types = {ReduceType::sum, ReduceType::max, ReduceType::min};
  const Layouts layouts = {random_spec(random, on.mesh, 2, types), random_spec(random, on.mesh, 2, types)};
  const uint64_t values = random();
  for (const ViewPolicy policy : {ViewPolicy::sync, ViewPolicy::strict}) {
    const Outcome outcome = ranks_of(on.ranks).check(call, {layouts}, 0, values, {.view = policy})[0];
    if (outcome.kind == Outcome::Kind::right) continue;
    const bool told = outcome.kind == Outcome::Kind::refused && (outcome.code == ErrorCode::detached_view || outcome.code == ErrorCode::stale_view);
    if (policy == ViewPolicy::strict && told) continue;
    return describe(policy == ViewPolicy::sync ? "a program under ViewPolicy::sync," : "a program under ViewPolicy::strict,", call, layouts, on) + ": " + outcome.text;
  }
  return "";
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Tries so many seeds and reports the first ten that fail, each with the command that shows it alone.
void try_seeds(const char* test, std::string (*attempt)(uint64_t seed), uint64_t otherwise) {
  const uint64_t count = from_environment("SHARD_PROPERTY_CASES", otherwise);
  const uint64_t first = from_environment("SHARD_PROPERTY_SEED", 1);
  int failures = 0;
  std::string report;
  for (uint64_t seed = first; seed < first + count && failures < 10; ++seed) {
    const std::string problem = attempt(seed);
    if (problem.empty()) continue;
    ++failures;
    report += "SHARD_PROPERTY_SEED=" + std::to_string(seed) + " SHARD_PROPERTY_CASES=1 shard_tests_call \"" + test + "\"\n    " + problem + "\n";
  }
  INFO(report);
  REQUIRE(failures == 0);
}

}  // namespace

TEST_CASE("property: a random op on random layouts equals the same op on one rank, bit for bit") { try_seeds("property: a random op*", try_op, 2000); }

TEST_CASE("property: a random program of views and writes means what it means on one rank, or is told") {
  try_seeds("property: a random program*", try_program, 500);
}
