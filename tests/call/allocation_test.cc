// Counts allocations: statement 12's "a hit allocates nothing but the outputs".
#include <catch2/catch.hpp>

#include <cstdlib>
#include <new>

#include "api.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

namespace {
thread_local int64_t allocations = 0;
}

// These replace the operators for the whole test program, libraries included.
void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

TEST_CASE("12: a distributed call with a cached plan allocates nothing but its outputs") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const Tensor x = distribute(iota<float>({4, 4}), DistSpec::parse(mesh, "p, -"));
    Tensor y = distribute(iota<float>({4, 4}), DistSpec::parse(mesh, "p, -"));
    const auto count = [](auto&& call) {
      call();
      call();
      const int64_t before = allocations;
      call();
      return allocations - before;
    };
    // One for the handle; the storage comes from malloc.
    check(count([&] { add(x, y); }) == 1, "add");
    check(count([&] { reshape(x, {4, 2, 2}); }) == 1, "reshape");
    check(count([&] { sum(x, {1}); }) == 1, "sum");
    check(count([&] { matmul(x, transpose(x, {1, 0})); }) >= 2, "the counter counts");
  });
}
