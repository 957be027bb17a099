// Worlds within worlds: what a thread is, is again so after a run.
#include "shard/dist/world.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace world_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Runs a world within another one, of which it fails the program if asked to.
void run_inner(World& inner, Rank& outer, bool fails) {
  const auto run = [&] {
    inner.run([&](Rank& rank) {
      check(&current_rank() == &rank && &rank != &outer, "the inner rank is the current one");
      check(rank.world().size() == inner.size(), "in its own world");
      if (fails) fail(ErrorCode::invalid_argument, "the inner program fails");
    });
  };
  if (fails) check_contains(error_of(run, ErrorCode::invalid_argument), "the inner program fails");
  else run();
}

}  // namespace

TEST_CASE("a run of another world within a rank's program leaves that rank the current one, also where it throws") {
  run_ranks(2, [](Rank& outer) {
    const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
    for (const bool fails : {false, true}) {
      run_inner(*World::local(3), outer, fails);
      check(&current_rank() == &outer, "after threads");
      run_inner(*World::dry(4, 1), outer, fails);
      check(&current_rank() == &outer, "after a dry rank");
      const Tensor x = distribute(iota<float>({4}), DistSpec::parse(mesh, "p"));
      check(full_equals<float>(add(x, x), {0, 2, 4, 6}), "tensors have bytes, and calls are those of the outer world");
      check(outer.world().size() == 2, "the outer world");
    }
  });
  CHECK(current_rank_or_null() == nullptr);
}

TEST_CASE("a dry run on a thread without a rank leaves it without one, and its tensors have bytes again") {
  for (const bool fails : {false, true}) {
    const auto dry = World::dry(4, 1);
    try {
      dry->run([&](Rank& rank) {
        CHECK(&current_rank() == &rank);
        CHECK_FALSE(full({2}, 1.0).get().value.has_data());
        if (fails) fail(ErrorCode::invalid_argument, "the dry program fails");
      });
      CHECK_FALSE(fails);
    } catch (const Error& error) {
      CHECK(fails);
      CHECK(error.code() == ErrorCode::invalid_argument);
    }
    CHECK(current_rank_or_null() == nullptr);
    CHECK(full({2}, 1.0).to_vector<float>() == std::vector<float>{1, 1});
  }
}

TEST_CASE("an interrupt ends collectives that wait, and all later ones") {
  const auto world = World::local(2, {.timeout = std::chrono::minutes(10)});
  std::atomic<bool> here{false};
  std::thread user([&] {
    while (!here) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world->interrupt("the user has had enough");
  });
  const auto run = [&] {
    world->run([&](Rank& rank) {
      if (rank.id() == 1) return;
      here = true;
      const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
      full_tensor(distribute(iota<float>({4}), DistSpec::parse(mesh, "p")));
    });
  };
  check_contains(error_of(run, ErrorCode::peer_failed), "the user has had enough");
  user.join();
}

TEST_CASE("a rank tells whether tensors of it are alive") {
  const auto world = World::local(2);
  std::vector<Tensor> kept(2);
  world->run([&](Rank& rank) {
    const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
    kept[static_cast<size_t>(rank.id())] = distribute(iota<float>({4}), DistSpec::parse(mesh, "p"));
  });
  CHECK_FALSE(world->rank(0).use()->unique());
  kept.clear();
  CHECK(world->rank(0).use()->unique());
  CHECK(world->rank(1).use()->unique());
}

TEST_CASE("a tensor with a collective in flight that another thread drops is freed by its rank") {
  const auto world = World::local(2, {.timeout = std::chrono::seconds(5)});
  Tensor dropped;
  std::barrier step(2);
  world->run([&](Rank& rank) {
    const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
    const auto* split = DistSpec::parse(mesh, "p");
    const auto* whole = DistSpec::parse(mesh, "-");
    if (rank.id() == 1) dropped = reshard_async(distribute(iota<float>({4}), split), whole);
    step.arrive_and_wait();
    if (rank.id() == 0) {
      dropped = Tensor();  // would wait for a collective that this rank has not joined
      check(full_equals<float>(reshard(distribute(iota<float>({4}), split), whole), {0, 1, 2, 3}), "the value");
    } else {
      rank.comm_queue().finish();
    }
  });
  CHECK(world->rank(1).use()->unique());
}

}  // namespace world_test
