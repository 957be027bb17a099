// Plans as values: their predictions, their guarantees, and the counts of communicators.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <map>
#include <mutex>
#include <set>

#include "reshard/layouts.h"
#include "shard/reshard/boxes.h"
#include "support/mesh_run.h"

namespace plan_test {

using namespace shard;
using namespace shard::test;

namespace {

using Kind = ReshardStep::Kind;

std::shared_ptr<const ReshardPlan> plan_of(const ProcessMesh* mesh, const Dims& dims, const char* from, const char* to,
                                           int64_t cap = 0) {
  return plan_reshard({dims, DType::float32}, DistSpec::parse(mesh, from), DistSpec::parse(mesh, to), cap);
}

/// Bytes of the largest local shard.
int64_t shard_bytes(const DistSpec* spec, const Dims& dims) {
  return 4 * shard_box(spec->layout(), dims, Coordinate{}).dims.numel();
}

/// Steps; an all-reduce is two, a reduce-scatter and an all-gather.
int phases(const ReshardPlan& plan) {
  int n = 0;
  for (const ReshardStep& step : plan.steps) n += step.kind == Kind::all_reduce ? 2 : 1;
  return n;
}

/// Reshards every `stride`-th pair of layouts, and compares what each rank sends along each axis with the plan.
void check_counts(const ProcessMesh* mesh, const Dims& dims, size_t stride) {
  run_ranks(mesh->size(), [&](Rank& rank) {
    const auto layouts = all_layouts(mesh, dims.rank(), {ReduceType::sum});
    const Tensor value = iota<float>(dims);
    size_t pair = 0;
    for (const DistSpec* from : layouts) {
      const Tensor start = distribute(value, from);
      for (const DistSpec* to : layouts) {
        if (pair++ % stride != 0) continue;
        const auto plan = plan_reshard(start.meta(), from, to);
        std::vector<int64_t> before(static_cast<size_t>(mesh->rank()) + 1);
        const auto sent = [&](int axis) {
          return axis < 0 ? rank.stats(mesh).bytes_sent : rank.stats(mesh, axis).bytes_sent;
        };
        for (int axis = -1; axis < mesh->rank(); ++axis) before[static_cast<size_t>(axis + 1)] = sent(axis);
        reshard(start, to);
        for (int axis = -1; axis < mesh->rank(); ++axis) {
          int64_t planned = 0;
          for (const ReshardStep& step : plan->steps)
            planned += step.group_axis() == axis ? bytes_sent_by(step, DType::float32, rank.id()) : 0;
          const int64_t counted = sent(axis) - before[static_cast<size_t>(axis + 1)];
          check(planned == counted,
                fmt::format("{} {} -> {} rank {} axis {}: planned {}, counted {}; {}", to_string(dims), from->text(),
                            to->text(), rank.id(), axis, planned, counted, plan->describe()));
        }
      }
    }
  });
}

/// Sums and maxima over ranks equal the plan's; no plan is worse than full replication, none costs more than
/// `slack` times a detour over any third layout.
void check_plans(const ProcessMesh* mesh, const Dims& dims, double slack = 1) {
  const auto layouts = all_layouts(mesh, dims.rank(), {ReduceType::sum});
  const DistSpec* whole = DistSpec::replicated(mesh, dims.rank());
  const Meta meta{dims, DType::float32};
  const bool uniform = mesh->costs().axes == std::vector<AxisCost>(static_cast<size_t>(mesh->rank()));
  const size_t n = layouts.size();
  std::vector<double> costs(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < n; ++k) {
      const auto plan = plan_reshard(meta, layouts[i], layouts[k]);
      costs[i * n + k] = plan->ns;
      INFO(to_string(dims) << " on " << mesh->describe() << ": " << plan->explain());
      int64_t total = 0;
      for (const ReshardStep& step : plan->steps) {
        int64_t sum = 0;
        int64_t most = 0;
        for (const int process : mesh->processes()) {
          const int64_t sent = bytes_sent_by(step, DType::float32, process);
          sum += sent;
          most = std::max(most, sent);
        }
        if (sum != step.bytes || most != step.bytes_max)
          FAIL(step.bytes << " B, at most " << step.bytes_max << " planned, but " << sum << ", " << most);
        total += sum;
      }
      const auto gather = plan_reshard(meta, layouts[i], whole);
      const auto scatter = plan_reshard(meta, whole, layouts[k]);
      // The route through full replication; the gathered tensor is an input of its second half, which no caller
      // keeps.
      const int64_t peak =
          std::max(gather->peak, shard_bytes(layouts[i], dims) + 4 * dims.numel() + shard_bytes(layouts[k], dims));
      if (total != plan->bytes) FAIL(total << " B by steps");
      // Where an axis is slow, more steps and bytes along the others may take less time.
      const bool better = phases(*plan) <= std::max(1, phases(*gather) + phases(*scatter)) &&
                          (plan->peak <= peak || scatter->steps.empty()) &&
                          plan->bytes <= gather->bytes + scatter->bytes;
      if (uniform && !better) FAIL("not as good as\n" << gather->explain() << "\n" << scatter->explain());
    }
  }
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) {
      for (size_t c = 0; c < n; ++c) {
        if (costs[a * n + c] <= slack * (costs[a * n + b] + costs[b * n + c]) + 1e-6) continue;
        FAIL(to_string(dims) << ": " << layouts[a]->text() << " -> " << layouts[c]->text() << " costs "
                             << costs[a * n + c] << ", by way of " << layouts[b]->text() << " " << costs[a * n + b]
                             << " + " << costs[b * n + c] << "\n"
                             << plan_reshard(meta, layouts[a], layouts[c])->explain() << "\n"
                             << plan_reshard(meta, layouts[a], layouts[b])->explain() << "\n"
                             << plan_reshard(meta, layouts[b], layouts[c])->explain());
      }
    }
  }
}

}  // namespace

TEST_CASE("planned bytes are the bytes that communicators count, per rank and per axis") {
  for (const Dims& dims : {Dims{4, 6}, Dims{3, 5}, Dims{1, 7}}) check_counts(ProcessMesh::make({2, 2}), dims, 1);
  check_counts(ProcessMesh::make({2, 3}), {5, 4}, 1);
  check_counts(ProcessMesh::make({3, 1, 2}), {7, 4}, 41);
}

TEST_CASE("closed forms of bytes agree with each rank's, and no plan is worse than full replication") {
  for (const Dims& dims : {Dims{4, 6}, Dims{3, 5}, Dims{1, 7}, Dims{2, 2}})
    check_plans(ProcessMesh::make({2, 2}), dims);
  for (const Dims& dims : {Dims{12, 6}, Dims{5, 4}}) check_plans(ProcessMesh::make({2, 3}), dims);
  check_plans(ProcessMesh::make({3, 1, 2}), {6, 6});
  check_plans(ProcessMesh::make({3, 1, 2}), {7, 5});
}

TEST_CASE("a plan costs no more than any detour, where copies cost more than start-up times and where axes differ") {
  // It is cheaper to make a value pending on small shards, before others are gathered: one detour that plans do not
  // take.
  check_plans(ProcessMesh::make({2, 3}), {6000, 1200}, 1.1);
  check_plans(ProcessMesh::make({2, 3}, {}, {}, {.axes = {{50000, 1.0}, {3000, 0.05}}}), {12, 6});
}

TEST_CASE("equal meshes with other costs are other meshes, and bad costs are refused") {
  CHECK(ProcessMesh::make({2}, {}, {}, {.axes = {{}}}) == ProcessMesh::make({2}));
  const auto* slow = ProcessMesh::make({2}, {}, {}, {.axes = {{9000, 0.5}}, .memory_cap = 64});
  CHECK(slow != ProcessMesh::make({2}));
  CHECK(slow->describe() == "mesh(a=2; costs 9000 ns + 0.5 ns/B; memory cap 64 B)");
  CHECK_THROWS_WITH(ProcessMesh::make({2, 2}, {}, {}, {.axes = {{}}}),
                    Catch::Contains("needs 2 axis costs, but 1 were given"));
  CHECK_THROWS_WITH(ProcessMesh::make({2}, {}, {}, {.axes = {{-1, 0}}}),
                    Catch::Contains("must be finite and not negative"));
}

TEST_CASE("costs of axes decide: a slow axis is gathered while the shards are small") {
  const auto* even = ProcessMesh::make({4, 4}, {}, {"node", "local"});
  const auto* slow = ProcessMesh::make({4, 4}, {}, {"node", "local"}, {.axes = {{5000, 1.0}, {5000, 0.05}}});
  const Dims dims{4096, 4096};
  CHECK(plan_of(even, dims, "node, local", "-, -")->steps.size() == 1);
  const auto plan = plan_of(slow, dims, "node, local", "-, -");
  CHECK(plan->describe() == "all_gather(node, dim 0) 201326592 B, all_gather(local, dim 1) 805306368 B");
  CHECK(plan->bytes_along(slow, 0) == 201326592);
  CHECK(plan->bytes_along(slow, 1) == 805306368);
  CHECK(plan->ns == Approx(plan->ns_along(slow, 0) + plan->ns_along(slow, 1)));
}

TEST_CASE("moving a shard from one dim to another is one step that never gathers, uneven or not") {
  const auto* mesh = ProcessMesh::make({4}, {}, {"tp"});
  for (const Dims& dims : {Dims{64, 64}, Dims{7, 5}, Dims{2, 63}}) {
    const auto plan = plan_of(mesh, dims, "tp, -", "-, tp");
    REQUIRE(plan->steps.size() == 1);
    CHECK(plan->steps[0].kind == Kind::all_to_all);
    CHECK(plan->peak == shard_bytes(plan->from, dims) + shard_bytes(plan->to, dims));
  }
  CHECK(plan_of(mesh, {64, 64}, "-, - | sum(tp)", "-, tp")->describe() == "reduce_scatter(tp, sum, dim 1) 49152 B");
}

TEST_CASE("swapped axes and other orders of axes are one step without gathering") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
  CHECK(plan_of(mesh, {12, 6}, "a+b, -", "b+a, -")->describe() == "permute(a+b, [a+b, -] -> [b+a, -]) 192 B");
  CHECK(plan_of(mesh, {12, 6}, "a, b", "b, a")->steps.size() == 1);
  const auto* square = ProcessMesh::make({4, 4}, {}, {"a", "b"});
  const auto swap = plan_of(square, {64, 64}, "a, b", "b, a");
  REQUIRE(swap->steps.size() == 1);
  CHECK(swap->steps[0].kind == Kind::permute);
  CHECK(swap->bytes == 12 * 16 * 16 * 4);  // the diagonal stays
  CHECK(swap->peak == 2 * 16 * 16 * 4);
}

TEST_CASE("moves that follow each other are one exchange of boxes") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  CHECK(plan_of(mesh, {8, 8}, "a, -", "-, b")->describe() == "exchange(a, [a, -] -> [-, b]) 256 B");
  CHECK(plan_of(mesh, {8, 8}, "a+b, -", "-, -")->describe() == "all_gather(a+b, dim 0) 768 B");
  CHECK(plan_of(mesh, {8, 8}, "-, -", "a, b")->describe() == "slice(a, dim 0, b, dim 1)");
}

TEST_CASE("axes of one process cost nothing but a copy") {
  const auto* mesh = ProcessMesh::make({1, 2}, {}, {"one", "two"});
  CHECK(plan_of(mesh, {4, 4}, "one, two", "-, two | sum(one)")->describe() == "copy()");
  CHECK(plan_of(mesh, {4, 4}, "one+two, -", "two, -")->describe() == "copy()");
  CHECK(plan_of(mesh, {4, 4}, "two+one, -", "-, two")->describe() == "all_to_all(two, dim 0 -> 1) 32 B");
}

TEST_CASE("a memory cap takes a slower plan that fits, or says how much is needed") {
  const auto* mesh = ProcessMesh::make({4, 4}, {}, {"node", "local"}, {.axes = {{5000, 1.0}, {5000, 0.05}}});
  const Dims dims{4096, 4096};
  const auto fast = plan_of(mesh, dims, "node, local", "local, -");
  const auto small = plan_of(mesh, dims, "node, local", "local, -", fast->peak - 1);
  CHECK(small->peak < fast->peak);
  CHECK(small->ns > fast->ns);
  CHECK(small->peak == (4096 * 4096 / 16 + 4096 * 4096 / 4) * 4);
  CHECK_THROWS_WITH(plan_of(mesh, dims, "node, local", "local, -", small->peak - 1),
                    "[reshard] argument 'tensor': no reshard of f32[4096, 4096] from [node, local] on mesh(node=4, "
                    "local=4; costs 5000 ns + 1 ns/B, 5000 ns + 0.05 ns/B) to [local, -] on mesh(node=4, local=4; "
                    "costs 5000 ns + 1 ns/B, 5000 ns + 0.05 ns/B) fits the memory cap of 20971519 bytes per rank; the "
                    "smallest peak is 20971520 bytes. Raise the cap, or choose a layout with smaller shards");
  // The mesh may have a cap of its own.
  const auto* capped = ProcessMesh::make({4}, {}, {"a"}, {.memory_cap = 100});
  CHECK_THROWS_WITH(plan_of(capped, {8, 4}, "a, -", "-, -"),
                    Catch::Contains("memory cap of 100 bytes per rank; the smallest peak is 160 bytes"));
}

TEST_CASE("the smallest peak that a refusal names is a memory cap that is kept to, in every dtype and SumPolicy") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const auto layouts = all_layouts(mesh, 2, {ReduceType::sum, ReduceType::max});
  int64_t refused = 0;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const SumPolicy sums : {SumPolicy::float32, SumPolicy::rounded}) {
      for (const DistSpec* from : layouts) {
        for (const DistSpec* to : layouts) {
          const auto planned = [&](int64_t cap) {
            return plan_reshard({{10, 30}, dtype}, from, to, cap, {"reshard", "tensor"}, sums);
          };
          int64_t least = 0;
          try {
            planned(1);
          } catch (const Error& error) {
            REQUIRE(error.code() == ErrorCode::policy);
            const std::string text = error.what(), words = "the smallest peak is ";
            least = std::stoll(text.substr(text.find(words) + words.size()));
          }
          if (least == 0) continue;
          ++refused;
          INFO(from->text() << " to " << to->text() << ", " << to_string(dtype)
                            << (sums == SumPolicy::rounded ? ", rounded" : ""));
          CHECK(planned(least)->peak == least);
          CHECK(planned(least + 1)->peak <= least + 1);
          CHECK_THROWS_AS(planned(least - 1), Error);
        }
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("a plan is the same on all ranks, also where several cost the same") {
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> found;
  run_ranks(8, [&](Rank&) {
    const auto* mesh = ProcessMesh::make({2, 2, 2}, {}, {"a", "b", "c"});
    const auto layouts = all_layouts(mesh, 2, {ReduceType::sum});
    std::map<std::string, std::string> mine;
    for (size_t i = 0; i < layouts.size(); i += 3) {
      for (size_t j = 0; j < layouts.size(); j += 5) {
        const auto plan = plan_reshard({{8, 8}, DType::float32}, layouts[i], layouts[j]);
        mine[layouts[i]->text() + " to " + layouts[j]->text()] = plan->explain();
      }
    }
    const std::lock_guard lock(mutex);
    for (const auto& [pair, plan] : mine) found[pair].insert(plan);
  });
  CHECK(found.size() > 200);
  for (const auto& [pair, plans] : found) {
    INFO(pair);
    CHECK(plans.size() == 1);
  }
}

TEST_CASE("layouts of another rank are refused with shape, layouts and meshes") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"a"});
  CHECK_THROWS_WITH(plan_of(mesh, {4, 4}, "a", "-, a"),
                    "[reshard] argument 'tensor': f32[4, 4] has 2 dims, but it is to be resharded from layout [a] on "
                    "mesh(a=2) to [-, a] on mesh(a=2); use layouts with an entry for each dim");
}

TEST_CASE("explain_reshard prints steps, bytes, predicted time and peak, per collective and in all") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  run_ranks(4, [&](Rank&) {
    const Tensor x = distribute(iota<float>({4, 4}), DistSpec::parse(mesh, "-, tp | sum(dp)"));
    check(explain_reshard(x, DistSpec::parse(mesh, "dp, -")) ==
              "f32[4, 4] from [-, tp] sum(dp) to [dp, -] on mesh(dp=2, tp=2)\n  1. reduce_scatter(dp, sum, dim 0): 64 "
              "B sent, at most 16 B by a rank; 5.0 us; peak 48 B\n  2. all_gather(tp, dim 1): 64 B sent, at most 16 B "
              "by a rank; 5.0 us; peak 80 B\n  over dp: 64 B, 5.0 us\n  over tp: 64 B, 5.0 us\n  total: 128 B sent, at "
              "most 32 B by a rank; 10.0 us; peak 80 B",
          explain_reshard(x, DistSpec::parse(mesh, "dp, -")));
  });
}

TEST_CASE("relayouts of huge tensors and layouts of 4096 ranks are planned in closed form") {
  const auto* mesh = ProcessMesh::make({8}, {}, {"tp"});
  const auto flat = plan_relayout({{8192, 50000}, DType::float32}, DistSpec::parse(mesh, "-, tp"), {8192 * 50000},
                                  DistSpec::parse(mesh, "tp"));
  CHECK(flat->bytes == int64_t{8192} * 50000 / 8 * 7 * 4);
  const auto* pod = ProcessMesh::make({64, 8, 8}, {}, {"dp", "tp", "pp"});
  const auto plan = plan_of(pod, {4096, 2048, 8192}, "dp, -, tp", "dp, tp, -");
  CHECK(plan->describe() ==
        fmt::format("all_to_all(tp, dim 2 -> 1) {} B", int64_t{4096} * 2048 * 8192 / 8 * 7 * 8 * 4));
}

}  // namespace plan_test
