// Collectives between threads, and what happens when ranks fail, diverge or do not come (statements 18 to 20).
#include <catch2/catch.hpp>

#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;
using namespace std::chrono_literals;

namespace {
const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
}  // namespace

TEST_CASE("collectives give every member what it should have") {
  run_ranks(3, [](Rank& rank) {
    Communicator& all = rank.communicator(line(3), 0);
    const int me = rank.id();
    const std::vector<int64_t> bytes = {4, 8, 0};
    const std::vector<int32_t> mine(static_cast<size_t>(bytes[static_cast<size_t>(me)]) / 4, me + 1);
    std::vector<int32_t> gathered(3);
    all.all_gather({}, mine.data(), gathered.data(), bytes);
    check(gathered == std::vector<int32_t>{1, 2, 2}, "all_gather");

    std::vector<int32_t> sum = {me, 10 * me, 1, 1, 1};
    all.all_reduce({}, sum.data(), 5, DType::int32, ReduceType::sum);
    check(sum == std::vector<int32_t>{3, 30, 3, 3, 3}, "all_reduce");

    const std::vector<float> parts = {1, 2, 3, 4};
    std::vector<float> part(2, -1);
    all.reduce_scatter({}, parts.data(), part.data(), std::vector<int64_t>{1, 2, 1}, DType::float32, ReduceType::sum);
    check(part[0] == (me == 0 ? 3 : me == 1 ? 6 : 12), "reduce_scatter");

    const std::vector<int64_t> one(3, 4);
    const std::vector<int32_t> send = {10 * me, 10 * me + 1, 10 * me + 2};
    std::vector<int32_t> got(3);
    all.all_to_all({}, send.data(), one, got.data(), one);
    check(got == std::vector<int32_t>{me, 10 + me, 20 + me}, "all_to_all");

    int32_t word = me == 1 ? 77 : 0;
    all.broadcast({}, &word, 4, 1);
    check(word == 77, "broadcast");
  });
}

TEST_CASE("18: an all-reduce of floats has the same bits on every rank") {
  std::array<std::vector<float>, 4> results;
  run_ranks(4, [&](Rank& rank) {
    std::vector<float> values;
    for (int i = 0; i < 1000; ++i) values.push_back(1.0f / static_cast<float>(1 + i * 7 + rank.id() * 13));
    rank.communicator(line(4), 0).all_reduce({}, values.data(), 1000, DType::float32, ReduceType::sum);
    results[static_cast<size_t>(rank.id())] = values;
  });
  for (const auto& result : results) CHECK(result == results[0]);
}

TEST_CASE("19: when a rank throws, run rethrows its error and the others fail at once") {
  auto world = World::local(3, {.timeout = 20s});
  std::atomic<int> peers_failed = 0;
  const auto begin = now_ns();
  try {
    world->run([&](Rank& rank) {
      if (rank.id() == 1) throw std::runtime_error("disk on fire");
      try {
        int32_t word = 0;
        rank.communicator(line(3), 0).all_reduce({}, &word, 1, DType::int32, ReduceType::sum);
      } catch (const Error& error) {
        peers_failed += error.code() == ErrorCode::peer_failed;
        throw;
      }
    });
    FAIL("no error");
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()) == "disk on fire");
  }
  CHECK(peers_failed == 2);
  CHECK(now_ns() - begin < 10'000'000'000);
  CHECK_THAT(error_of([&] { world->run([](Rank&) {}); }, ErrorCode::peer_failed), Catch::Contains("disk on fire"));
}

TEST_CASE("20: a rank that never comes is named, with the collective and its cause") {
  auto world = World::local(2, {.timeout = 200ms});
  const std::string text = error_of(
      [&] {
        world->run([&](Rank& rank) {
          if (rank.id() == 1) return;
          std::vector<int64_t> bytes = {4, 4};
          int32_t word = 0;
          std::array<int32_t, 2> out{};
          rank.communicator(line(2), 0).all_gather({"matmul", "y"}, &word, out.data(), bytes);
        });
      },
      ErrorCode::timeout);
  CHECK_THAT(text, Catch::Contains("rank 1 never joined #0 all_gather for matmul argument 'y'"));
}

TEST_CASE("20: ranks that diverge are told which collective each is at") {
  auto world = World::local(2, {.timeout = 5s});
  const std::string text = error_of(
      [&] {
        world->run([&](Rank& rank) {
          float word = 0;
          Communicator& all = rank.communicator(line(2), 0);
          if (rank.id() == 0) all.all_reduce({"add", "x"}, &word, 1, DType::float32, ReduceType::sum);
          else all.all_reduce({"max", "x"}, &word, 1, DType::float32, ReduceType::max);
        });
      },
      ErrorCode::communication);
  CHECK_THAT(text, Catch::Contains("ranks have diverged") && Catch::Contains("op add") && Catch::Contains("op max"));
}

TEST_CASE("20: collectives stand in the trace ring with their cause") {
  auto world = World::local(2);
  world->run([](Rank& rank) {
    float word = 1;
    rank.communicator(line(2), 0).all_reduce({"sum", "x"}, &word, 1, DType::float32, ReduceType::sum);
  });
  const auto events = world->rank(1).trace.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].name == "all_reduce");
  CHECK(events[0].op == "sum");
  const std::vector<std::vector<TraceEvent>> ranks = {world->rank(0).trace.events(), events};
  CHECK_THAT(chrome_trace(ranks), Catch::Contains("\"all_reduce\"") && Catch::Contains("\"rank 1\""));
}

TEST_CASE("19: several worlds live in one process") {
  auto a = World::local(2);
  auto b = World::local(3);
  a->run([&](Rank& rank) {
    check(rank.world().size() == 2, "outer world");
    check(current_rank_or_null() == &rank, "current rank");
  });
  b->run([&](Rank& rank) { check(rank.world().size() == 3, "other world"); });
  CHECK(current_rank_or_null() == nullptr);
}
