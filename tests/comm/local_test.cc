// Collectives between threads, and failures: ranks that fail, diverge or never join (statements 18 to 20).
#include <catch2/catch.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "support/mesh_run.h"

namespace local_test {

using namespace shard;
using namespace shard::test;
using namespace std::chrono_literals;

namespace {
const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }

/// While one exists, this process may use at most `room` bytes of address space more than it has.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(rlim_t room) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + room, before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};
}  // namespace

TEST_CASE("collectives give every member what it should have") {
  run_ranks(3, [](Rank& rank) {
    Communicator& all = rank.communicator(line(3), 0);
    const int me = rank.id();
    const std::vector<int64_t> bytes = {4, 8, 0};
    const std::vector<int32_t> mine(static_cast<size_t>(bytes[static_cast<size_t>(me)]) / 4, me + 1);
    std::vector<int32_t> gathered(3);
    all.all_gather({}, mine.data(), gathered.data(), bytes).wait();
    check(gathered == std::vector<int32_t>{1, 2, 2}, "all_gather");

    std::vector<int32_t> sum = {me, 10 * me, 1, 1, 1};
    all.all_reduce({}, sum.data(), 5, DType::int32, ReduceType::sum).wait();
    check(sum == std::vector<int32_t>{3, 30, 3, 3, 3}, "all_reduce");

    const std::vector<float> parts = {1, 2, 3, 4};
    std::vector<float> part(2, -1);
    all.reduce_scatter({}, parts.data(), part.data(), std::vector<int64_t>{1, 2, 1}, DType::float32, ReduceType::sum)
        .wait();
    check(part[0] == (me == 0 ? 3 : me == 1 ? 6 : 12), "reduce_scatter");

    const std::vector<int64_t> one(3, 4);
    const std::vector<int32_t> send = {10 * me, 10 * me + 1, 10 * me + 2};
    std::vector<int32_t> got(3);
    all.all_to_all({}, send.data(), one, got.data(), one).wait();
    check(got == std::vector<int32_t>{me, 10 + me, 20 + me}, "all_to_all");

    int32_t word = me == 1 ? 77 : 0;
    all.broadcast({}, &word, 4, 1).wait();
    check(word == 77, "broadcast");
  });
}

TEST_CASE("an exchange moves boxes between buffers of other shapes, and counts those that leave") {
  auto world = World::local(3);
  world->run([](Rank& rank) {
    Communicator& all = rank.communicator(line(3), 0);
    // Rows of [3, 4] become columns of [4, 3]: member i has row i and gets the columns 1 to 2 of all rows; member 2
    // gets nothing.
    const int me = rank.id();
    std::vector<int32_t> row = {10 * me, 10 * me + 1, 10 * me + 2, 10 * me + 3};
    std::vector<int32_t> out(6, -1);
    std::vector<BoxTransfer> sends;
    std::vector<BoxTransfer> receives;
    for (int to = 0; to < 2; ++to) sends.push_back({to, {1, 4}, {0, 1}, {3, 2}, {me, 0}, {1, 2}});
    for (int from = 0; from < 3 && me < 2; ++from)
      receives.push_back({from, {1, 4}, {0, 1}, {3, 2}, {from, 0}, {1, 2}});
    all.exchange({"move", "x"}, row.data(), sends, out.data(), receives, 4).wait();
    check(out == (me < 2 ? std::vector<int32_t>{1, 2, 11, 12, 21, 22} : std::vector<int32_t>(6, -1)), "exchange");
    all.exchange({}, nullptr, {}, nullptr, {}, 4).wait();
    const CommStats stats = rank.stats(line(3), 0);
    check(stats[CommKind::exchange].calls == 2 && stats[CommKind::exchange].bytes_sent == (me < 2 ? 8 : 16),
          "bytes that leave are counted");
    check(stats.collectives == 2 && rank.stats(line(3)).collectives == 0 && rank.stats().bytes_sent == stats.bytes_sent,
          "per axis and in all");
  });
}

TEST_CASE(
    "collectives that are under way are completed in the order of their start, at the latest when the program ends") {
  std::array<std::vector<int32_t>, 2> results;
  run_ranks(2, [&](Rank& rank) {
    Communicator& all = rank.communicator(line(2), 0);
    std::vector<int32_t> words(3, rank.id() + 1);
    const std::vector<int64_t> none = {0, 0};
    std::array<Work, 3> works;
    for (size_t i = 0; i < 3; ++i) works[i] = all.all_reduce({}, &words[i], 1, DType::int32, ReduceType::sum);
    check(works[0].pending(), "a handle");
    works[rank.id() == 0 ? 2 : 0].wait();  // the ranks wait in different orders
    works[1].wait();
    works[1].wait();
    check(words[1] == 3, "result");
    Work dropped = all.all_gather({}, nullptr, nullptr, none);
    dropped = Work();
    for (Work& work : works) work.wait();
    results[static_cast<size_t>(rank.id())] = words;
  });
  CHECK(results[0] == std::vector<int32_t>{3, 3, 3});
  CHECK(results[1] == results[0]);
}

TEST_CASE("19: a rank that another process runs is an error with the ranks that are here") {
  auto world = World::local(2);
  CHECK(world->local_ranks() == std::vector<int>{0, 1});
  CHECK_THAT(error_of([&] { world->rank(2); }, ErrorCode::wrong_rank),
             Catch::Contains("rank 2 of 2") && Catch::Contains("has ranks 0, 1"));
}

TEST_CASE("18: an all-reduce of floats has the same bits on every rank") {
  std::array<std::vector<float>, 4> results;
  run_ranks(4, [&](Rank& rank) {
    std::vector<float> values;
    for (int i = 0; i < 1000; ++i) values.push_back(1.0f / static_cast<float>(1 + i * 7 + rank.id() * 13));
    rank.communicator(line(4), 0).all_reduce({}, values.data(), 1000, DType::float32, ReduceType::sum).wait();
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
        rank.communicator(line(3), 0).all_reduce({}, &word, 1, DType::int32, ReduceType::sum).wait();
      } catch (const Error& error) {
        peers_failed += error.code() == ErrorCode::peer_failed;
        throw;
      }
    });
    FAIL("no error");
  } catch (const std::runtime_error& error) { CHECK(std::string(error.what()) == "disk on fire"); }
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
          rank.communicator(line(2), 0).all_gather({"matmul", "y"}, &word, out.data(), bytes).wait();
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
          if (rank.id() == 0) all.all_reduce({"add", "x"}, &word, 1, DType::float32, ReduceType::sum).wait();
          else all.all_reduce({"max", "x"}, &word, 1, DType::float32, ReduceType::max).wait();
        });
      },
      ErrorCode::communication);
  CHECK_THAT(text, Catch::Contains("ranks have diverged") &&
                       Catch::Contains("#0 all_reduce of 1 float32 (sum) for add argument 'x'") &&
                       Catch::Contains("(max) for max argument 'x'"));
}

TEST_CASE("20: collectives stand in the trace ring with their cause") {
  auto world = World::local(2);
  world->run([](Rank& rank) {
    float word = 1;
    rank.communicator(line(2), 0).all_reduce({"sum", "x"}, &word, 1, DType::float32, ReduceType::sum).wait();
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

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHARD_TESTS_SANITIZED  // Clang 14 defines no __SANITIZE_ADDRESS__
#endif
#endif

TEST_CASE("19: a world that cannot start a thread for each rank says so, runs nothing, and can be used again") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHARD_TESTS_SANITIZED)
  WARN("skipped: sanitizers do not run with a limit on the address space");
#else
  const auto world = World::local(64);
  std::atomic<int> ran = 0;
  const auto count = [&](Rank&) { ++ran; };
  // Each thread needs a stack of some megabytes of address space: some can be started, and not all.
  for (const rlim_t room : {rlim_t{40} << 20, rlim_t{1} << 20}) {
    std::string text;
    {
      const AddressSpaceLimit limit(room);
      text = error_of([&] { world->run(count); }, ErrorCode::device);
    }
    CHECK_THAT(text, Catch::Contains("could not start the thread of rank") && Catch::Contains("of 64") &&
                         Catch::Contains("ulimit"));
    CHECK(ran == 0);
  }
  world->run([&](Rank& rank) {
    int32_t one = 1;
    rank.communicator(line(64), 0).all_reduce({}, &one, 1, DType::int32, ReduceType::sum).wait();
    check(one == 64, "all ranks are there");
    ++ran;
  });
  CHECK(ran == 64);
#endif
}

}  // namespace local_test
