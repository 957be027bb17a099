// Every transition between layouts, with uneven and empty shards, on 1-D and 2-D meshes; statement 11's relayout.
#include <catch2/catch.hpp>

#include "reshard/layouts.h"
#include "shard/reshard/execute.h"
#include "shard/reshard/plan.h"
#include "support/mesh_run.h"

namespace reshard_test {

using namespace shard;
using namespace shard::test;

namespace {

void check_all_transitions(const std::vector<int>& mesh_shape, const Dims& dims) {
  const auto* mesh = ProcessMesh::make(mesh_shape);
  run_ranks(mesh->size() + 1, [&](Rank&) {
    const Tensor value = iota<float>(dims, 1.0f);
    const std::vector<float> expected = value.to_vector<float>();
    const auto layouts = all_layouts(mesh, dims.rank(), {ReduceType::sum, ReduceType::max});
    for (const DistSpec* from : layouts) {
      const Tensor start = distribute(value, from);
      for (const DistSpec* to : layouts) {
        const Tensor moved = reshard(start, to);
        check(spec_of(moved) == to, "the layout is the one asked for");
        check(full_equals(moved, expected), to_string(dims) + " from " + from->text() + " to " + to->text());
      }
    }
  });
}

}  // namespace

TEST_CASE("every transition keeps the value on one axis, uneven and empty shards included") {
  for (int64_t size = 0; size <= 7; ++size) check_all_transitions({3}, {size, 4});
  check_all_transitions({2}, {});
  check_all_transitions({1}, {3, 2});
}

TEST_CASE("every transition keeps the value on two axes, uneven sizes included") {
  check_all_transitions({2, 2}, {3, 5});
  check_all_transitions({2, 3}, {7, 1});
}

TEST_CASE("moving a shard from one dim to another is one all-to-all and never gathers") {
  const auto* mesh = ProcessMesh::make({4}, {}, {"tp"});
  const auto plan =
      plan_reshard({{64, 64}, DType::float32}, DistSpec::parse(mesh, "tp, -"), DistSpec::parse(mesh, "-, tp"));
  REQUIRE(plan->steps.size() == 1);
  CHECK(plan->steps[0].kind == ReshardStep::Kind::all_to_all);
  const auto scatter =
      plan_reshard({{64, 64}, DType::float32}, DistSpec::parse(mesh, "-, - | sum(tp)"), DistSpec::parse(mesh, "-, tp"));
  REQUIRE(scatter->steps.size() == 1);
  CHECK(scatter->steps[0].kind == ReshardStep::Kind::reduce_scatter);
}

TEST_CASE("several axes on one dim reshard in every order") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
  run_ranks(6, [&](Rank&) {
    const Tensor value = iota<int64_t>({11, 3});
    const auto expected = value.to_vector<int64_t>();
    for (const char* from : {"a+b, -", "b+a, -", "a, b", "-, a+b"}) {
      for (const char* to : {"a+b, -", "b+a, -", "b, a", "-, b+a", "-, -"}) {
        const Tensor moved = reshard(distribute(value, DistSpec::parse(mesh, from)), DistSpec::parse(mesh, to));
        check(full_equals(moved, expected), std::string(from) + " to " + to);
      }
    }
  });
}

TEST_CASE("partial values of every reduce type combine to the reduction of their shards") {
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  const std::vector<std::pair<ReduceType, float>> cases = {
      {ReduceType::sum, 6}, {ReduceType::max, 3}, {ReduceType::min, 1}, {ReduceType::prod, 6},
      {ReduceType::avg, 2}, {ReduceType::any, 1}, {ReduceType::all, 1}};
  for (const auto& [type, expected] : cases) {
    run_ranks(3, [&, type = type, expected = expected](Rank& rank) {
      Layout layout(mesh, 1);
      layout.partial[0] = type;
      const Tensor shard = Tensor::from_data<float>({static_cast<float>(rank.id() + 1)}, {1});
      const Tensor partial = from_local(shard, DistSpec::make(layout), {1}, DType::float32);
      check(full_tensor(partial).to_vector<float>()[0] == expected, to_string(type));
    });
  }
}

TEST_CASE("a layout in which values would be lost is refused") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const auto spec = [&](const char* text) { return DistSpec::parse(mesh, text); };
    const Tensor floats = iota<float>({3}, 5.0f);
    check_contains(error_of([&] { distribute(floats, spec("- | any(p)")); }, ErrorCode::layout), "cast it to bool");
    check_contains(error_of([&] { reshard(distribute(floats, spec("p")), spec("- | all(p)")); }, ErrorCode::layout),
                   "layout [p] on mesh(p=2)");
    check_contains(error_of([&] { distribute(iota<int64_t>({3}), spec("- | avg(p)")); }, ErrorCode::layout),
                   "pending average of integers");
    check(full_equals<float>(distribute(floats, spec("- | avg(p)")), {5, 6, 7}), "an average of floats");
    const Tensor truth = Tensor::from_data<bool>({true, false, true}, {3});
    check(full_tensor(distribute(truth, spec("- | any(p)"))).to_vector<bool>() == std::vector<bool>{true, false, true},
          "truth values");
  });
}

TEST_CASE("11: a relayout moves row-major elements to their owners in another shape") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  run_ranks(4, [&](Rank& rank) {
    const Tensor value = iota<int32_t>({5, 4});
    const auto expected = value.to_vector<int32_t>();
    for (const char* from : {"a, -", "-, a", "a+b, -", "b, a", "-, -"}) {
      for (const char* to : {"a", "b", "a+b", "-"}) {
        const Tensor start = distribute(value, DistSpec::parse(mesh, from));
        const auto plan = plan_relayout(start.meta(), spec_of(start), {20}, DistSpec::parse(mesh, to));
        const int64_t before = rank.stats().bytes_sent;
        const DenseTensor shard = execute_reshard(rank, *plan, start.get().value, {});
        check(plan->bytes != 0 || rank.stats().bytes_sent == before, "no bytes where none were planned");
        check(full_equals(make_dist(rank, {{20}, DType::int32}, plan->to, shard), expected),
              std::string(from) + " to " + to);
      }
    }
  });
}

TEST_CASE("distribute takes the value from one rank when asked to") {
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  run_ranks(3, [&](Rank& rank) {
    const Tensor mine = iota<float>({5}, static_cast<float>(10 * rank.id()));
    const Tensor tensor = distribute(mine, DistSpec::parse(mesh, "p"), from_rank(2));
    check(full_equals<float>(tensor, {20, 21, 22, 23, 24}), "rank 2's value");
    // 2 + 2 + 1 floats, each sent to two other ranks.
    const auto plan = plan_reshard(tensor.meta(), spec_of(tensor), DistSpec::parse(mesh, "-"));
    check(plan->describe() == "all_gather(p, dim 0) 40 B", "described");
  });
}

TEST_CASE("from_local refuses a shard of the wrong shape and says which is right") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const std::string text =
        error_of([&] { from_local(iota<float>({4}), DistSpec::parse(mesh, "p"), {5}, DType::float32); },
                 ErrorCode::shape_mismatch);
    check_contains(text, "must be f32");
  });
}

TEST_CASE("a mesh that names a process outside the world is refused") {
  run_ranks(2, [&](Rank&) {
    const std::string text = error_of(
        [&] { distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({3}), "a")); }, ErrorCode::layout);
    check_contains(text, "names process 2, but the world has ranks 0 to 1");
  });
}

}  // namespace reshard_test
