// Views of sharded tensors: a reshape whose processes keep their elements, in the same order, shares the buffer and
// sends nothing.
#include <catch2/catch.hpp>

#include <random>

#include "spmd/reshape_layouts.h"

namespace reshape_test {

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;

TEST_CASE("11, 21: a reshape shares where every process keeps its elements, on whichever dims of the result they are") {
  const auto* square = ProcessMesh::make({2, 2});
  const auto expect = [](const ProcessMesh* mesh, const Dims& in, const char* layout, const Dims& out,
                         const char* expected) {
    INFO(to_string(in) << " [" << layout << "] to " << to_string(out));
    const Inferred inferred = infer_reshape(mesh, in, layout, out);
    CHECK_FALSE(inferred.relayout);
    CHECK(inferred.text == "[" + std::string(layout) + "] -> " + expected);
  };
  expect(square, {2, 4}, "a, b", {8}, "[a+b]");
  expect(square, {3, 8}, "-, a+b", {3, 2, 4}, "[-, a, b]");
  expect(square, {3, 2, 4}, "-, a, b", {3, 8}, "[-, a+b]");
  expect(square, {1, 8}, "a, -", {1, 2, 4}, "[a, -, -]");
  expect(square, {1, 8}, "a, -", {8, 1}, "[-, a]");
  expect(square, {8, 1, 1}, "-, a, b", {1, 8}, "[a+b, -]");
  expect(square, {1, 2}, "a, b", {2}, "[b+a]");
  expect(ProcessMesh::make({2, 1}), {4, 6}, "-, b", {24}, "[b]");
  expect(ProcessMesh::make({2, 1}), {4, 6}, "a, b", {24}, "[a+b]");
  expect(ProcessMesh::make({1, 2}), {4, 6}, "a, -", {2, 12}, "[a, -]");
  CHECK(infer_reshape(square, {5, 4}, "a, -", {20}).relayout);
  CHECK(infer_reshape(square, {4, 4}, "a, b", {16}).relayout);
}

TEST_CASE(
    "property: a reshape of up to 64 elements shares if and only if some layout keeps every element where it is") {
  std::mt19937 random(20240611);
  const ProcessMesh* const meshes[] = {
      ProcessMesh::make({2}),    ProcessMesh::make({3}),    ProcessMesh::make({2, 2}),   ProcessMesh::make({2, 1}),
      ProcessMesh::make({2, 3}), ProcessMesh::make({1, 4}), ProcessMesh::make({2, 2, 2})};
  int shared = 0, moved = 0;
  for (int i = 0; i < 1500; ++i) {
    const ProcessMesh* const mesh = meshes[random() % std::size(meshes)];
    const int64_t numel = 1 + static_cast<int64_t>(random() % 64);
    const Dims in = random_shape(random, numel), out = random_shape(random, numel);
    const Layout layout = random_layout(random, mesh, in.rank());
    const DistSpec* const spec = DistSpec::make(layout);
    bool possible = false;
    for_all_layouts(mesh, out.rank(),
                    [&](const Layout& each) { possible = possible || same_elements(layout, in, each, out); });
    const Inferred inferred = infer_reshape(mesh, in, spec->text(), out);
    INFO(to_string(in) << " " << inferred.text << " " << to_string(out) << " on " << mesh->describe());
    if (possible == inferred.relayout) FAIL_CHECK("relayout: " << inferred.relayout);
    if (!inferred.relayout) {
      const std::string given = inferred.text.substr(inferred.text.find("-> ") + 3);
      if (!same_elements(layout, in, DistSpec::parse(mesh, given)->layout(), out)) FAIL_CHECK("elements move");
    }
    ++(possible ? shared : moved);
  }
  CHECK(shared > 300);
  CHECK(moved > 100);
}

}  // namespace reshape_test
