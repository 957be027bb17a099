// Counts allocations: statement 12's "a hit allocates nothing but the outputs".
#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "support/allocations.h"
#include "support/mesh_run.h"

namespace allocation_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("12: a distributed call with a cached plan allocates nothing but its outputs") {
  if (counting_is_skipped()) return;
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const Tensor x = distribute(iota<float>({4, 4}), DistSpec::parse(mesh, "p, -"));
    Tensor y = distribute(iota<float>({4, 4}), DistSpec::parse(mesh, "p, -"));
    const auto count = [](auto&& call) {
      call();
      call();
      return allocated(call);
    };
    // The handle, and the buffer of an output that has its own.
    check(count([&] { add(x, y); }) == Allocations{0, 2}, "add");
    check(count([&] { reshape(x, {4, 2, 2}); }) == Allocations{0, 1}, "reshape");
    check(count([&] { sum(x, {1}); }) == Allocations{0, 2}, "sum");
    check(count([&] { matmul(x, transpose(x, {1, 0})); }).buffers >= 4, "the counter counts");
  });
}

TEST_CASE("12: an in-place call with one target allocates nothing, distributed with a cached plan and plain") {
  if (counting_is_skipped()) return;
  const auto check_calls = [](Tensor x, const Tensor& y, const std::string& where) {
    const auto count = [](auto&& call) {
      call();
      call();
      return allocated(call);
    };
    const auto nothing = [&](auto&& call, const std::string& what) {
      check(count(call) == Allocations{}, where + " " + what);
    };
    nothing([&] { relu_(x); }, "relu_");
    nothing([&] { add_(x, y); }, "add_");
    nothing([&] { scale_(x, Scalar(0.5), Scalar(0), true); }, "scale_");
  };
  check_calls(iota<float>({4, 4}), iota<float>({4, 4}), "plain");
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const auto make = [&] { return distribute(iota<float>({4, 4}), DistSpec::parse(mesh, "p, -")); };
    check_calls(make(), make(), "distributed");
  });
}

}  // namespace allocation_test
