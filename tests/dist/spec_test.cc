// Meshes, layouts and shard ranges (statements 7 and 8 of docs/semantics.md).
#include <catch2/catch.hpp>

#include "dist/spec.h"
#include "support/mesh_run.h"

using namespace shard;
using shard::test::error_of;

TEST_CASE("equal meshes and equal specs are equal pointers") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"dp", "tp"});
  CHECK(mesh == ProcessMesh::make({2, 3}, {0, 1, 2, 3, 4, 5}, {"dp", "tp"}));
  CHECK(mesh != ProcessMesh::make({3, 2}, {}, {"dp", "tp"}));
  CHECK(DistSpec::parse(mesh, "dp, tp") == DistSpec::parse(mesh, " dp ,tp "));
  CHECK(DistSpec::parse(mesh, "dp+tp, -") != DistSpec::parse(mesh, "tp+dp, -"));
}

TEST_CASE("a spec prints the text that parses to it") {
  const auto* mesh = ProcessMesh::make({2, 2, 2}, {}, {"dp", "tp", "sp"});
  for (const char* text : {"", "-", "dp, -", "tp+dp, sp", "-, - | sum(dp)", "sp | max(dp), avg(tp)"}) {
    const DistSpec* spec = DistSpec::parse(mesh, text);
    std::string printed = spec->text();
    const size_t close = printed.find(']');
    std::string partials = printed.substr(close + 1);
    std::string again = printed.substr(1, close - 1);
    if (!partials.empty()) {
      partials.erase(0, 1);
      for (size_t at; (at = partials.find(") ")) != std::string::npos;) partials.replace(at, 2, "), ");
      again += " | " + partials;
    }
    CHECK(DistSpec::parse(mesh, again) == spec);
  }
}

TEST_CASE("an invalid mesh or layout is an error that says why") {
  CHECK_THAT(error_of([] { ProcessMesh::make({2, 2}, {0, 1, 1, 2}); }, ErrorCode::invalid_argument), Catch::Contains("twice"));
  CHECK_THAT(error_of([] { ProcessMesh::make({2, 2}, {0, 1, 2}); }, ErrorCode::invalid_argument), Catch::Contains("needs 4 process ids, but 3"));
  for (const std::vector<int>& shape : {std::vector{1 << 30, 1 << 30, 16}, {1 << 30, 1 << 30, 1 << 30}, {1 << 30, 1 << 30, 8, 1 << 30, 4}}) {
    CHECK_THAT(error_of([&] { ProcessMesh::make(shape); }, ErrorCode::invalid_argument), Catch::Contains("more than 16777216 processes"));
    CHECK_THAT(error_of([&] { ProcessMesh::make(shape, {0, 1}); }, ErrorCode::invalid_argument), Catch::Contains("make an axis smaller"));
  }
  CHECK_THAT(error_of([] { ProcessMesh::make({0}); }, ErrorCode::invalid_argument), Catch::Contains("must be at least 1"));
  CHECK_THAT(error_of([] { ProcessMesh::make({2}, {0, -1}); }, ErrorCode::invalid_argument), Catch::Contains("must not be negative"));
  CHECK_THAT(error_of([] { ProcessMesh::make({1, 2}, {}, {"a", "a"}); }, ErrorCode::invalid_argument), Catch::Contains("axis twice"));
  for (const char* name : {"", "-", "a+b", "a b"}) {
    CHECK_THAT(error_of([&] { ProcessMesh::make({2}, {}, {name}); }, ErrorCode::invalid_argument), Catch::Contains("letters, digits and _"));
  }
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "pp"); }, ErrorCode::out_of_range), Catch::Contains("has no axis 'pp'; its axes are: dp, tp"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "dp, dp"); }, ErrorCode::layout), Catch::Contains("uses axis 'dp' twice"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "dp | sum(dp)"); }, ErrorCode::layout), Catch::Contains("twice"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "dp | total(tp)"); }, ErrorCode::invalid_argument), Catch::Contains("no reduce type"));
}

TEST_CASE("8: splits are balanced, larger pieces first, and axes nest") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
  std::vector<int64_t> sizes;
  for (int i = 0; i < 6; ++i) sizes.push_back(shard_range(10, *mesh, {0, 1}, mesh->coordinate_at(i)).size);
  CHECK(sizes == std::vector<int64_t>{2, 2, 1, 2, 2, 1});
  for (const AxisList& axes : {AxisList{0}, AxisList{1}, AxisList{0, 1}, AxisList{1, 0}}) {
    for (int64_t size = 0; size <= 13; ++size) {
      // Pieces cover the dim once, in the order of the nested coordinates.
      std::vector<int> owners(static_cast<size_t>(size), 0);
      int64_t lowest = size;
      int64_t highest = 0;
      for (int i = 0; i < mesh->size(); ++i) {
        const Range range = shard_range(size, *mesh, axes, mesh->coordinate_at(i));
        for (int64_t k = range.begin; k < range.begin + range.size; ++k) ++owners[static_cast<size_t>(k)];
        lowest = std::min(lowest, range.size);
        highest = std::max(highest, range.size);
      }
      int holders = mesh->size();
      for (int k = 0; k < axes.size(); ++k) holders /= mesh->size(axes[k]);
      for (int count : owners) CHECK(count == holders);
      if (axes.size() == 1) CHECK(highest - lowest <= 1);
    }
  }
}
