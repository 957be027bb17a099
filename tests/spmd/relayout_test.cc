// Reshapes of sharded tensors that have to send elements: the result gets a layout that needs the
// fewest bytes.
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "shard/reshard/boxes.h"
#include "shard/reshard/plan.h"
#include "spmd/reshape_layouts.h"

namespace relayout_test {

using namespace shard;
using namespace shard::spmd;
using namespace shard::test;

namespace {

/// A reshape and the layout of its argument.
struct Reshape {
  const ProcessMesh* mesh;
  Dims in, out;
  const DistSpec* from;
};

Reshape random_reshape(std::mt19937& random) {
  const ProcessMesh* const meshes[] = {ProcessMesh::make({2}),    ProcessMesh::make({3}),
                                       ProcessMesh::make({4}),    ProcessMesh::make({2, 2}),
                                       ProcessMesh::make({2, 3}), ProcessMesh::make({2, 2, 2})};
  const ProcessMesh* const mesh = meshes[random() % std::size(meshes)];
  const int64_t numel = 2 + static_cast<int64_t>(random() % 63);
  const Dims in = random_shape(random, numel), out = random_shape(random, numel);
  return {mesh, in, out, DistSpec::make(random_layout(random, mesh, in.rank()))};
}

const DistSpec* picked(const Reshape& r, const Inferred& inferred) {
  const std::string text = inferred.text.substr(inferred.text.find("-> [") + 4);
  return DistSpec::parse(r.mesh, text.substr(0, text.rfind(']')));
}

/// The bytes that all processes together receive: for each process, the elements that it will hold
/// and does not hold yet.
int64_t bytes_received(const Reshape& r, const Layout& to) {
  int64_t count = 0;
  for (int p = 0; p < r.mesh->size(); ++p) {
    const Coordinate at = r.mesh->coordinate_at(p);
    const std::vector<int64_t> before = held(r.from->layout(), r.in, at);
    const std::set<int64_t> has(before.begin(), before.end());
    for (const int64_t element : held(to, r.out, at)) count += !has.contains(element);
  }
  return count * static_cast<int64_t>(size_of(DType::float32));
}

/// The position of an axis among the axes that shard the tensor, dim by dim.
int order_of(const Layout& layout, int axis) {
  int place = 0;
  for (int d = 0; d < layout.rank; ++d) {
    const AxisList& axes = layout.dims[static_cast<size_t>(d)];
    for (int i = 0; i < axes.size(); ++i, ++place) {
      if (axes[i] == axis) return place;
    }
  }
  return -1;
}

/// True if each axis shards a dim that is made of the dims that it sharded before, and the axes of
/// one dim keep their order.
bool keeps_axes(const Reshape& r, const Layout& to) {
  for (int d = 0; d < to.rank; ++d) {
    const AxisList& axes = to.dims[static_cast<size_t>(d)];
    for (int i = 1; i < axes.size(); ++i) {
      if (order_of(r.from->layout(), axes[i - 1]) > order_of(r.from->layout(), axes[i])) return false;
    }
  }
  for (int axis = 0; axis < r.mesh->rank(); ++axis) {
    const int before = r.from->layout().dim_of(axis), after = to.dim_of(axis);
    bool same = before < 0 && after < 0;
    for (const DimGroup& g : group_dims(r.in, r.out)) {
      if (before < g.in_begin || before >= g.in_end) continue;
      same = g.out_begin == g.out_end ? after < 0 : after >= g.out_begin && after < g.out_end;
    }
    if (!same) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("property: a reshape that moves elements sends as few bytes as to any layout of the same axes") {
  std::mt19937 random(20250301);
  int moved = 0, choices = 0;
  while (moved < 250) {
    const Reshape r = random_reshape(random);
    const Inferred inferred = infer_reshape(r.mesh, r.in, r.from->text(), r.out);
    if (!inferred.relayout) continue;
    ++moved;
    const DistSpec* const to = picked(r, inferred);
    INFO(to_string(r.in) << " " << inferred.text << " " << to_string(r.out) << " on " << r.mesh->describe());
    const int64_t bytes = bytes_received(r, to->layout());
    if (plan_relayout({r.in, DType::float32}, r.from, r.out, to)->bytes != bytes)
      FAIL_CHECK("the plan does not send " << bytes << " bytes");
    if (!keeps_axes(r, to->layout())) FAIL_CHECK("an axis left its dims");
    int candidates = 0;
    for_all_layouts(r.mesh, r.out.rank(), [&](const Layout& each) {
      if (!keeps_axes(r, each)) return;
      ++candidates;
      const int64_t other = bytes_received(r, each);
      if (other < bytes)
        FAIL_CHECK(DistSpec::make(each)->text() << " takes " << other << " bytes, which is less than " << bytes);
    });
    choices += candidates > 1;
  }
  CHECK(choices > 100);
}

TEST_CASE("a reshape that moves elements has one layout and one plan on all ranks, also where several cost the same") {
  std::mutex mutex;
  std::map<int, std::set<std::string>> found;
  run_ranks(4, [&](Rank& rank) {
    // Each rank starts at a different case, so that equal results are not due to an equal order of
    // queries.
    std::map<int, std::string> mine;
    for (int i = 0; i < 200; ++i) {
      const int number = (i + 50 * rank.id()) % 200;
      std::mt19937 random(static_cast<unsigned>(number));
      const Reshape r = random_reshape(random);
      const Inferred inferred = infer_reshape(r.mesh, r.in, r.from->text(), r.out);
      mine[number] = inferred.text;
      if (inferred.relayout)
        mine[number] += plan_relayout({r.in, DType::float32}, r.from, r.out, picked(r, inferred))->explain();
    }
    const std::lock_guard lock(mutex);
    for (const auto& [number, text] : mine) found[number].insert(text);
  });
  for (const auto& [number, texts] : found) {
    INFO(number << ": " << *texts.begin());
    CHECK(texts.size() == 1);
  }
}

}  // namespace relayout_test
