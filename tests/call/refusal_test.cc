// Calls that are refused, and combinations of features, leave every tensor unchanged or as one rank would have it.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace refusal_test {

using namespace shard;
using namespace shard::test;

namespace {
const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(const char* text) { return DistSpec::parse(line(2), text); }
}  // namespace

TEST_CASE("4: a missing kernel is found before the first write, so that the target stays readable") {
  Tensor plain = iota<int64_t>({4});
  error_of([&] { exp_(plain); }, ErrorCode::no_kernel);
  CHECK(add(plain, plain).numel() == 4);
  run_ranks(2, [](Rank&) {
    Tensor x = distribute(iota<int64_t>({4}), spec("p"));
    error_of([&] { exp_(x); }, ErrorCode::no_kernel);
    check(full_equals<int64_t>(x, {0, 1, 2, 3}) && x.version() == 0, "as it was");
  });
}

TEST_CASE("4: a kernel that refuses its arguments has not written, and poisons nothing") {
  Tensor x = Tensor::from_data<int64_t>({4, 6}, {2});
  error_of([&] { divide_(x, Tensor::from_data<int64_t>({1, 0}, {2})); }, ErrorCode::invalid_argument);
  CHECK(add(x, x).to_vector<int64_t>() == std::vector<int64_t>{8, 12});
  CHECK(x.version() == 0);
}

TEST_CASE("24: the target of an in-place write is not even sliced, however large the readers are") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.inplace = InplacePolicy::error});
    Tensor x = distribute(iota<float>({600, 400}), spec("-, -"));
    add_(x, distribute(iota<float>({600, 400}), spec("p, -")));
    check(spec_of(x)->text() == "[-, -]", "layout");
  });
}

TEST_CASE("22: under ViewPolicy::sync full and reshard refresh a stale view first") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync});
    Tensor x = distribute(iota<float>({5, 4}, -4.0f), spec("p, -"));
    const Tensor y = reshape(x, {20});
    Tensor z = reshape(y, {4, 5});
    relu_(x);
    check(full_tensor(y).to_vector<float>()[0] == 0, "refreshed");
    relu_(z);
    check(full_tensor(x).to_vector<float>()[0] == 0 && full_tensor(z).to_vector<float>()[0] == 0,
          "written through both views");
  });
}

TEST_CASE("7: pending reductions of several types are done from the last mesh axis to the first, on every way") {
  const auto* mesh = ProcessMesh::make({2, 2});
  run_ranks(4, [&](Rank& rank) {
    const float mine = std::array<float, 4>{1, 5, 4, 2}[static_cast<size_t>(rank.id())];
    const Tensor x = from_local(Tensor::from_data<float>({mine}, {1}), DistSpec::parse(mesh, "- | sum(a), max(b)"), {1},
                                DType::float32);
    // max over b: 5 and 4; their sum over a: 9.
    for (const char* way : {"-", "- | max(b)", "- | sum(a)", "a", "b", "a+b", "a | max(b)"}) {
      check(full_equals<float>(reshard(x, DistSpec::parse(mesh, way)), {9}), way);
    }
    check(full_equals<float>(add(x, x), {18}), "an op that commutes with the sum only");
  });
}

TEST_CASE("14: a pending sum is reduced before it is scaled by infinity") {
  run_ranks(2, [](Rank& rank) {
    const auto* pending = DistSpec::parse(ProcessMesh::make({2}, {}, {"p"}), "- | sum(p)");
    const std::vector<float> mine = rank.id() == 0 ? std::vector<float>{1, 0, 5} : std::vector<float>{0, -1, -4};
    Tensor x = from_local(Tensor::from_data(mine, {3}), pending, {3}, DType::float32);
    const std::vector<float> expected = {INFINITY, -INFINITY, INFINITY};
    check(full_equals(scale(x, INFINITY), expected), "scale");
    check(spec_of(scale(x, 2))->text() == "[-] sum(p)", "a finite factor leaves the sum pending");
    scale_(x, INFINITY);
    check(full_equals(x, expected) && spec_of(x) == pending, "scale_");
  });
}

TEST_CASE("35: calls on plain tensors go on with the rank's generator from run to run") {
  auto world = World::local(1);
  std::array<std::vector<float>, 2> drawn;
  for (auto& values : drawn) world->run([&](Rank&) { values = uniform({8}).to_vector<float>(); });
  CHECK(drawn[0] != drawn[1]);
}

}  // namespace refusal_test
