// Worlds within worlds: what a thread is, is again so after a run.
#include "shard/dist/world.h"

#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "support/mesh_run.h"

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
