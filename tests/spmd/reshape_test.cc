// Views of sharded tensors: a reshape whose processes keep their elements, in the same order, shares the buffer and
// sends nothing.
#include <catch2/catch.hpp>

#include <functional>
#include <random>

#include "ops/shape_ops.h"
#include "spmd/rule_case.h"

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;

namespace {

Inferred infer_reshape(const ProcessMesh* mesh, const Dims& in, const std::string& layout, const Dims& out) {
  return run({ops::reshape, {{in, layout.c_str()}}, {IntArray(out)}, {out}, "", {}, {}, mesh});
}

/// The row-major indices that a process holds, in the order in which it holds them.
std::vector<int64_t> held(const Layout& layout, const Dims& dims, const Coordinate& at) {
  const Piece piece = local_piece(layout, dims, at);
  std::vector<int64_t> indices = {0};
  for (int d = 0; d < dims.rank(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t index : indices) {
      for (int64_t k = 0; k < piece.dims[d]; ++k) next.push_back(index * dims[d] + piece.begin[d] + k);
    }
    indices = std::move(next);
  }
  return indices;
}

bool same_elements(const Layout& in, const Dims& in_dims, const Layout& out, const Dims& out_dims) {
  for (int p = 0; p < in.mesh->size(); ++p) {
    const Coordinate at = in.mesh->coordinate_at(p);
    if (held(in, in_dims, at) != held(out, out_dims, at)) return false;
  }
  return true;
}

/// Every way to shard with each axis at most once.
void for_all_layouts(const ProcessMesh* mesh, int rank, const std::function<void(const Layout&)>& visit) {
  const std::function<void(const Layout&, int)> next = [&](const Layout& layout, int axis) {
    if (axis == mesh->rank()) return visit(layout);
    next(layout, axis + 1);
    for (size_t d = 0; d < static_cast<size_t>(rank); ++d) {
      for (int at = 0; at <= layout.dims[d].size(); ++at) {
        Layout with = layout;
        with.dims[d] = {};
        for (int k = 0; k <= layout.dims[d].size(); ++k) {
          if (k == at) with.dims[d].push_back(axis);
          if (k < layout.dims[d].size()) with.dims[d].push_back(layout.dims[d][k]);
        }
        next(with, axis + 1);
      }
    }
  };
  next(Layout(mesh, rank), 0);
}

Dims random_shape(std::mt19937& random, int64_t numel) {
  std::vector<int64_t> dims;
  while (numel > 1) {
    std::vector<int64_t> divisors;
    for (int64_t n = 2; n <= numel; ++n) {
      if (numel % n == 0) divisors.push_back(n);
    }
    dims.push_back(divisors[random() % divisors.size()]);
    numel /= dims.back();
  }
  for (int ones = static_cast<int>(random() % 3); ones > 0 && dims.size() < 4; --ones)
    dims.insert(dims.begin() + static_cast<long>(random() % (dims.size() + 1)), 1);
  Dims result;
  for (const int64_t n : dims) result.push_back(n);
  return result;
}

}  // namespace

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
    Layout layout(mesh, in.rank());
    for (int axis = 0; axis < mesh->rank() && in.rank() > 0; ++axis) {
      if (random() % 4 != 0) layout.dims[random() % static_cast<size_t>(in.rank())].push_back(axis);
    }
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
