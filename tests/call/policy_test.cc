// Policies, the plan cache, fallback, and errors of distributed calls (statements 12, 16, 19, 20, 36).
#include <catch2/catch.hpp>

#include "shard/call/plan_cache.h"
#include "shard/core/log.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace policy_test {

using namespace shard;
using namespace shard::test;

namespace {
const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(const char* text) { return DistSpec::parse(line(2), text); }
}  // namespace

TEST_CASE("20: CommPolicy::forbid throws before a byte is sent and names op, argument, layouts and bytes") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4, 4}), spec("p, -"));
    const Tensor y = distribute(iota<float>({4, 4}), spec("-, p"));
    const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
    const int64_t before = rank.stats().bytes_sent;
    const std::string text = error_of([&] { add(x, y); }, ErrorCode::policy);
    check_contains(text, "[add] would communicate");
    check_contains(text, "from [");
    check_contains(text, "bytes");
    check(rank.stats().bytes_sent == before, "nothing was sent");
    add(x, x);
  });
}

TEST_CASE("20: CommPolicy::warn tells the log sink and goes on") {
  std::atomic<int> messages = 0;
  set_log_sink(
      [&](std::string_view text) { messages += text.find("[add] would communicate") != std::string_view::npos; });
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.comm = CommPolicy::warn});
    add(distribute(iota<float>({4, 4}), spec("p, -")), distribute(iota<float>({4, 4}), spec("-, p")));
  });
  set_log_sink({});
  CHECK(messages == 2);
}

TEST_CASE("12: the plan cache hits on equal calls, tells layouts and attributes apart, and stays bounded") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4, 4}), spec("p, -"));
    const Tensor y = distribute(iota<float>({4, 4}), spec("-, p"));
    const auto start = call::plan_cache_stats(rank);
    for (int i = 0; i < 10; ++i) add(x, x);
    auto stats = call::plan_cache_stats(rank);
    check(stats.misses - start.misses == 1 && stats.hits - start.hits == 9, "one plan");
    add(x, y);
    sum(x, {0});
    sum(x, {1});
    sum(x, {1});
    concat({x, x}, 0);
    concat({x, x}, 0);
    concat({x, x, x}, 0);
    stats = call::plan_cache_stats(rank);
    check(stats.misses - start.misses == 6 && stats.hits - start.hits == 11, "keys");
    for (int i = 0; i < 5000; ++i) scale(x, 1.0, static_cast<double>(i));
    check(call::plan_cache_stats(rank).evictions > 900, "bounded");
  });
}

TEST_CASE("19: a tensor of another rank, another mesh or no mesh in a call is an error that says what to do") {
  std::array<Tensor, 2> shared;
  auto world = World::local(2);
  world->run([&](Rank& rank) { shared[static_cast<size_t>(rank.id())] = distribute(iota<float>({4}), spec("p")); });
  world->run([&](Rank& rank) {
    const Tensor& mine = shared[static_cast<size_t>(rank.id())];
    const Tensor& theirs = shared[static_cast<size_t>(1 - rank.id())];
    check_contains(error_of([&] { add(mine, theirs); }, ErrorCode::wrong_rank),
                   "argument 'y' (f32[4], layout [p] on mesh(p=2)) belongs to rank");
    check_contains(error_of([&] { add(mine, iota<float>({4})); }, ErrorCode::layout), "distribute(tensor, spec)");
    const Tensor other = distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({2}, {1, 0}, {"p"}), "p"));
    check_contains(error_of([&] { add(mine, other); }, ErrorCode::layout), "another mesh");
  });
  CHECK_THAT(error_of([&] { add(shared[0], shared[0]); }, ErrorCode::wrong_rank), Catch::Contains("World::run"));
  shared = {};
}

TEST_CASE("36: errors name the op, the argument and what to do") {
  const Tensor x = iota<float>({2, 3});
  CHECK_THAT(error_of([&] { add(x, iota<float>({4})); }, ErrorCode::shape_mismatch),
             Catch::Contains("[add]") && Catch::Contains("[2, 3]") && Catch::Contains("[4]"));
  CHECK_THAT(error_of([&] { add(x, iota<int32_t>({3})); }, ErrorCode::dtype_mismatch),
             Catch::Contains("[add]") && Catch::Contains("cast"));
  CHECK_THAT(error_of([&] { add(x, Tensor()); }, ErrorCode::undefined), Catch::Contains("argument 'y'"));
  CHECK_THAT(error_of([&] { sum(x, {2}); }, ErrorCode::out_of_range), Catch::Contains("[sum]") && Catch::Contains("2"));
  CHECK_THAT(error_of([&] { exp(iota<int32_t>({2})); }, ErrorCode::no_kernel),
             Catch::Contains("[exp] no kernel registered for exp on cpu with int32"));
  CHECK_THAT(error_of([&] { matmul(x, x); }, ErrorCode::shape_mismatch), Catch::Contains("[matmul]"));
}

}  // namespace policy_test
