// Helpers for tests that draw random calls: meshes, layouts, and trying one seed after another.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "shard/testing/shards.h"

namespace shard::test {

/// A mesh of 1 to 3 axes in a world of at most that many ranks, some of which may be outside the
/// mesh, in any order.
struct RandomMesh {
  int ranks = 1;
  const ProcessMesh* mesh = nullptr;

  RandomMesh(testing::Random& random, int most) {
    using testing::pick;
    std::vector<int> shape;
    int size = 1;
    for (int64_t axes = pick(random, 1, 3); axes > 0; --axes) {
      shape.push_back(static_cast<int>(pick(random, 1, std::min(axes == 1 && shape.empty() ? most : 4, most / size))));
      size *= shape.back();
    }
    ranks = std::min(most, size + static_cast<int>(pick(random, 0, 2)) / 2);
    std::vector<int> processes(static_cast<size_t>(ranks));
    std::iota(processes.begin(), processes.end(), 0);
    if (pick(random, 0, 1) == 1) std::shuffle(processes.begin(), processes.end(), random);
    processes.resize(static_cast<size_t>(size));
    mesh = ProcessMesh::make(shape, processes);
  }

  std::vector<int64_t> sizes() const {
    int longest = 1;
    for (int axis = 0; axis < mesh->rank(); ++axis) longest = std::max(longest, mesh->size(axis));
    std::vector<int64_t> all(static_cast<size_t>(2 * longest + 2));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  std::string text() const { return mesh->describe() + " of " + std::to_string(ranks) + " ranks"; }
};

/// Each axis replicated, on a random dim in a random order, or pending with one of `types`.
inline const DistSpec* random_spec(testing::Random& random, const ProcessMesh* mesh, int rank,
                                   const std::vector<ReduceType>& types) {
  using testing::pick;
  Layout layout(mesh, rank);
  std::vector<int> axes(static_cast<size_t>(mesh->rank()));
  std::iota(axes.begin(), axes.end(), 0);
  std::shuffle(axes.begin(), axes.end(), random);
  for (int axis : axes) {
    const int64_t choice = pick(random, -2, rank - 1);
    if (choice >= 0) layout.dims[static_cast<size_t>(choice)].push_back(axis);
    if (choice == -2)
      layout.partial[static_cast<size_t>(axis)] =
          types[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(types.size()) - 1))];
  }
  return DistSpec::make(layout);
}

inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Tries seeds starting at SHARD_PROPERTY_SEED (1), SHARD_PROPERTY_CASES (`otherwise`) of them, and
/// reports the first ten for which `attempt` returns an error, each with the command that
/// reproduces it alone.
template <class Attempt>
void try_seeds(const char* program, const char* test, Attempt attempt, uint64_t otherwise) {
  const uint64_t count = from_environment("SHARD_PROPERTY_CASES", otherwise);
  const uint64_t first = from_environment("SHARD_PROPERTY_SEED", 1);
  int failures = 0;
  std::string report;
  for (uint64_t seed = first; seed < first + count && failures < 10; ++seed) {
    const std::string problem = attempt(seed);
    if (problem.empty()) continue;
    ++failures;
    report += "SHARD_PROPERTY_SEED=" + std::to_string(seed) + " SHARD_PROPERTY_CASES=1 " + program + " \"" + test +
              "\"\n    " + problem + "\n";
  }
  INFO(report);
  REQUIRE(failures == 0);
}

}  // namespace shard::test
