// Reshards between meshes: disjoint, overlapping, parts of each other, of other shapes, and with ranks in another
// order.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "reshard/layouts.h"
#include "shard/reshard/boxes.h"
#include "support/mesh_run.h"

namespace mesh_to_mesh_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Checks that the value on the ranks of `spec`'s mesh, as returned by `full_tensor`, equals `expected`; and a reshard
/// back.
void check_pair(Rank& rank, const Tensor& value, const DistSpec* from, const DistSpec* to) {
  const std::string what = fmt::format("{} {} on {} to {} on {}", to_string(value.meta()), from->text(),
                                       from->mesh()->describe(), to->text(), to->mesh()->describe());
  const Tensor start = distribute(value, from);
  const auto plan = plan_reshard(start.meta(), from, to);
  const int64_t before = rank.stats().bytes_sent;
  const Tensor moved = reshard(start, to);
  const int64_t sent = rank.stats().bytes_sent - before;
  int64_t planned = 0;
  for (const ReshardStep& step : plan->steps) planned += bytes_sent_by(step, value.dtype(), rank.id());
  check(planned == sent,
        fmt::format("{}: rank {} sent {} bytes, planned {}; {}", what, rank.id(), sent, planned, plan->describe()));
  check(spec_of(moved) == to, what);
  check(
      moved.get().value.dims() == (to->mesh()->coordinate(rank.id())
                                       ? shard_box(to->layout(), value.dims(), *to->mesh()->coordinate(rank.id())).dims
                                       : Dims::filled(value.dims().rank(), 0)),
      what);
  check(full_equals(moved, value.to_vector<float>()), what + ": " + plan->explain());
}

}  // namespace

TEST_CASE("tensors move between meshes of any shapes and ranks, and every rank sends what was planned") {
  const std::vector<const ProcessMesh*> meshes = {
      ProcessMesh::make({2, 2}),         ProcessMesh::make({2}, {4, 5}),
      ProcessMesh::make({3}, {1, 2, 4}), ProcessMesh::make({4}, {3, 1, 0, 2}),
      ProcessMesh::make({1}, {5}),       ProcessMesh::make({3, 2})};
  size_t pair = 0;
  run_ranks(7, [&](Rank& rank) {
    size_t mine = 0;
    for (const Dims& dims : {Dims{4, 6}, Dims{5, 3}}) {
      const Tensor value = iota<float>(dims, 1.0f);
      for (const ProcessMesh* from : meshes) {
        for (const ProcessMesh* to : meshes) {
          if (from == to) continue;
          for (const DistSpec* a : all_layouts(from, 2, {ReduceType::sum})) {
            for (const DistSpec* b : all_layouts(to, 2, {ReduceType::sum})) {
              if (mine++ % 7 == 0) check_pair(rank, value, a, b);
            }
          }
        }
      }
    }
    if (rank.id() == 0) pair = mine;
  });
  CHECK(pair > 1000);
}

TEST_CASE("between meshes pending reductions are done before and begun after, and replicas share the sending") {
  const auto* first = ProcessMesh::make({4}, {0, 1, 2, 3}, {"a"});
  const auto* second = ProcessMesh::make({4}, {4, 5, 6, 7}, {"b"});
  const Meta meta{{1024, 1024}, DType::float32};
  const auto plan = [&](const char* from, const char* to) {
    return plan_reshard(meta, DistSpec::parse(first, from), DistSpec::parse(second, to));
  };
  // Each rank of the target gets its shard from another holder.
  const auto spread = plan("-, -", "b, -");
  REQUIRE(spread->steps.size() == 1);
  CHECK(spread->bytes == 1024 * 1024 * 4);
  CHECK(spread->bytes_max == 1024 * 256 * 4);
  const auto reduced = plan("-, - | sum(a)", "b, -");
  REQUIRE(reduced->steps.size() == 2);
  CHECK(reduced->steps[0].kind == ReshardStep::Kind::reduce_scatter);
  CHECK(reduced->steps[1].kind == ReshardStep::Kind::send_recv);
  const auto begun = plan("a, -", "-, - | sum(b)");
  CHECK(begun->steps.back().kind == ReshardStep::Kind::partial_init);
  CHECK(begun->peak > 0);
}

TEST_CASE(
    "between overlapping meshes with replicas each missing element is received once, by those who lack it alone") {
  const Dims dims{6, 4};
  const Meta meta{dims, DType::float32};
  const std::vector<const ProcessMesh*> meshes = {ProcessMesh::make({3}, {0, 1, 2}), ProcessMesh::make({3}, {2, 1, 3}),
                                                  ProcessMesh::make({2, 2}, {3, 1, 4, 2}),
                                                  ProcessMesh::make({4}, {4, 0, 1, 5})};
  int64_t checked = 0;
  for (const ProcessMesh* from : meshes) {
    for (const ProcessMesh* to : meshes) {
      if (from == to) continue;
      for (const DistSpec* a : all_layouts(from, 2, {})) {
        for (const DistSpec* b : all_layouts(to, 2, {})) {
          const auto plan = plan_reshard(meta, a, b);
          if (plan->steps.size() != 1) continue;  // an exchange within a mesh comes before or after
          int64_t lacking = 0;
          for (const int process : to->processes()) {
            const ShardBox wanted = shard_box(b->layout(), dims, *to->coordinate(process));
            int64_t held = 0;
            if (const auto at = from->coordinate(process)) {
              const ShardBox has = shard_box(a->layout(), dims, *at);
              held = 1;
              for (int d = 0; d < 2; ++d) {
                const int64_t begin = std::max(has.begin[d], wanted.begin[d]);
                const int64_t end = std::min(has.begin[d] + has.dims[d], wanted.begin[d] + wanted.dims[d]);
                held *= std::max<int64_t>(end - begin, 0);
              }
            }
            lacking += wanted.dims.numel() - held;
          }
          INFO(a->text() << " on " << from->describe() << " to " << b->text() << " on " << to->describe() << ": "
                         << plan->describe());
          CHECK(plan->bytes == 4 * lacking);
          ++checked;
        }
      }
    }
  }
  CHECK(checked > 200);
}

TEST_CASE("one rank's value reaches a mesh in shards, which the mesh then gathers") {
  const auto* one = ProcessMesh::make({1}, {0}, {"one"});
  const auto* four = ProcessMesh::make({4}, {1, 2, 3, 4}, {"b"});
  const auto plan =
      plan_reshard({{1024, 1024}, DType::float32}, DistSpec::parse(one, "-, -"), DistSpec::parse(four, "-, -"));
  REQUIRE(plan->steps.size() == 2);
  CHECK(plan->steps[0].bytes == 1024 * 1024 * 4);
  CHECK(plan->steps[1].kind == ReshardStep::Kind::all_gather);
}

TEST_CASE("a mesh outside the world is refused as the target of a move") {
  const auto* mesh = ProcessMesh::make({2});
  run_ranks(2, [&](Rank&) {
    const Tensor x = distribute(iota<float>({4}), DistSpec::parse(mesh, "a"));
    check_contains(error_of(
                       [&] {
                         reshard(x, DistSpec::parse(ProcessMesh::make({2}, {1, 2}), "a"));
                       },
                       ErrorCode::layout),
                   "names process 2");
  });
}

}  // namespace mesh_to_mesh_test
