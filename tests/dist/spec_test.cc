// Meshes, layouts and shard ranges (statements 7 and 8 of docs/semantics.md).
#include <catch2/catch.hpp>

#include <functional>

#include "shard/dist/spec.h"
#include "support/mesh_run.h"

namespace spec_test {

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
  for (const char* text : {"", "-", "dp, -", "tp+dp, sp", "-, - | sum(dp)", "sp | max(dp), avg(tp)", "| sum(tp)"}) {
    const DistSpec* spec = DistSpec::parse(mesh, text);
    CHECK(DistSpec::parse(mesh, spec->text()) == spec);
  }
  const DistSpec* pending = DistSpec::parse(mesh, "dp | sum(tp), max(sp)");
  for (const char* text : {"[dp] sum(tp) max(sp)", "[dp] sum(tp), max(sp)", " [ dp ]  | max( sp ) sum(tp) ",
                           "dp | sum(tp) max(sp)", "dp|sum(tp)max(sp)"}) {
    CHECK(DistSpec::parse(mesh, text) == pending);
  }
}

TEST_CASE("the text of every spec of up to three dims on a mesh of three axes parses to that spec") {
  const auto* mesh = ProcessMesh::make({2, 1, 3}, {}, {"dp", "t_2", "9"});
  int specs = 0;
  // Each axis is unused, pending with one of seven reductions, or shards a dim, before or after the axes that do so
  // already.
  const std::function<void(const Layout&, int)> visit = [&](const Layout& layout, int axis) {
    if (axis == mesh->rank()) {
      const DistSpec* spec = DistSpec::make(layout);
      ++specs;
      if (DistSpec::parse(mesh, spec->text()) != spec) FAIL_CHECK(spec->text());
      return;
    }
    visit(layout, axis + 1);
    for (int type = 0; type < kNumReduceTypes; ++type) {
      Layout pending = layout;
      pending.partial[static_cast<size_t>(axis)] = static_cast<ReduceType>(type);
      visit(pending, axis + 1);
    }
    for (size_t d = 0; d < static_cast<size_t>(layout.rank); ++d) {
      for (const bool first : {false, true}) {
        Layout sharded = layout;
        if (first) sharded.dims[d] = {axis};
        for (int i = 0; first && i < layout.dims[d].size(); ++i) sharded.dims[d].push_back(layout.dims[d][i]);
        if (!first) sharded.dims[d].push_back(axis);
        visit(sharded, axis + 1);
      }
    }
  };
  for (int rank = 0; rank <= 3; ++rank) visit(Layout(mesh, rank), 0);
  CHECK(specs > 4000);
}

TEST_CASE("an invalid mesh or layout is an error that says why") {
  CHECK_THAT(error_of(
                 [] {
                   ProcessMesh::make({2, 2}, {0, 1, 1, 2});
                 },
                 ErrorCode::invalid_argument),
             Catch::Contains("twice"));
  CHECK_THAT(error_of(
                 [] {
                   ProcessMesh::make({2, 2}, {0, 1, 2});
                 },
                 ErrorCode::invalid_argument),
             Catch::Contains("needs 4 process ids, but 3"));
  for (const std::vector<int>& shape :
       {std::vector{1 << 30, 1 << 30, 16}, {1 << 30, 1 << 30, 1 << 30}, {1 << 30, 1 << 30, 8, 1 << 30, 4}}) {
    CHECK_THAT(error_of([&] { ProcessMesh::make(shape); }, ErrorCode::invalid_argument),
               Catch::Contains("more than 16777216 processes"));
    CHECK_THAT(error_of(
                   [&] {
                     ProcessMesh::make(shape, {0, 1});
                   },
                   ErrorCode::invalid_argument),
               Catch::Contains("make an axis smaller"));
  }
  CHECK_THAT(error_of([] { ProcessMesh::make({0}); }, ErrorCode::invalid_argument),
             Catch::Contains("must be at least 1"));
  CHECK_THAT(error_of(
                 [] {
                   ProcessMesh::make({2}, {0, -1});
                 },
                 ErrorCode::invalid_argument),
             Catch::Contains("must not be negative"));
  CHECK_THAT(error_of(
                 [] {
                   ProcessMesh::make({1, 2}, {}, {"a", "a"});
                 },
                 ErrorCode::invalid_argument),
             Catch::Contains("axis twice"));
  for (const char* name : {"", "-", "a+b", "a b"}) {
    CHECK_THAT(error_of([&] { ProcessMesh::make({2}, {}, {name}); }, ErrorCode::invalid_argument),
               Catch::Contains("letters, digits and _"));
  }
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "pp"); }, ErrorCode::layout),
             Catch::Contains("has no axis 'pp'; its axes are: dp, tp"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "dp, dp"); }, ErrorCode::layout),
             Catch::Contains("uses axis 'dp' twice"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "dp | sum(dp)"); }, ErrorCode::layout), Catch::Contains("twice"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "dp | total(tp)"); }, ErrorCode::layout),
             Catch::Contains("'total' is not a reduce type"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "- | sum(pp)"); }, ErrorCode::layout),
             Catch::Contains("has no axis 'pp'"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "- | sum(dp), max(dp)"); }, ErrorCode::layout),
             Catch::Contains("uses axis 'dp' twice"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "- | sum dp"); }, ErrorCode::layout),
             Catch::Contains("must have the form sum(axis)"));
  CHECK_THAT(error_of([&] { DistSpec::parse(mesh, "- | sum(dp) | max(tp)"); }, ErrorCode::layout),
             Catch::Contains("more than one '|'"));
  CHECK_THAT(error_of([&] { DistSpec::parse(nullptr, "-"); }, ErrorCode::layout), Catch::Contains("needs a mesh"));
  for (const char* text :
       {"[dp", "dp]", "[dp] tp", "-,", ",", "dp+", "+", "- | sum(dp),", "- | )(", "- | sum()", "[-] sum(dp"}) {
    INFO(text);
    CHECK_FALSE(error_of([&] { DistSpec::parse(mesh, text); }, ErrorCode::layout).empty());
  }
}

TEST_CASE("8: splits are balanced, larger shards first, and axes nest") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
  std::vector<int64_t> sizes;
  for (int i = 0; i < 6; ++i) sizes.push_back(shard_range(10, *mesh, {0, 1}, mesh->coordinate_at(i)).size);
  CHECK(sizes == std::vector<int64_t>{2, 2, 1, 2, 2, 1});
  for (const AxisList& axes : {AxisList{0}, AxisList{1}, AxisList{0, 1}, AxisList{1, 0}}) {
    for (int64_t size = 0; size <= 13; ++size) {
      // Local shards cover the dim once, in the order of the nested coordinates.
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

}  // namespace spec_test
