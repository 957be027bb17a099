#include "mpi/library_checks.h"

#include <fmt/format.h>

#include <cmath>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test {
namespace {

/// All layouts of a tensor with `rank` dims along the axes of `mesh`, one axis at a time; with pending sums where
/// asked for.
std::vector<const DistSpec*> layouts(const ProcessMesh* mesh, int rank, bool pending) {
  std::vector<const DistSpec*> specs = {DistSpec::make(Layout(mesh, rank))};
  for (int axis = 0; axis < mesh->rank(); ++axis) {
    for (int d = 0; d < rank; ++d) {
      Layout layout(mesh, rank);
      layout.dims[static_cast<size_t>(d)].push_back(axis);
      specs.push_back(DistSpec::make(layout));
    }
    if (!pending) continue;
    Layout layout(mesh, rank);
    layout.partial[static_cast<size_t>(axis)] = ReduceType::sum;
    specs.push_back(DistSpec::make(layout));
  }
  return specs;
}

void check_value(const Tensor& tensor, const Tensor& expected, const std::string& what, float tolerance = 0) {
  const Tensor whole = full_tensor(tensor);
  if (!whole.defined()) return;
  const auto got = whole.to_vector<float>();
  const auto wanted = expected.to_vector<float>();
  check(got.size() == wanted.size(), what + ": size");
  for (size_t i = 0; i < got.size(); ++i) {
    check(std::abs(got[i] - wanted[i]) <= tolerance * std::max(1.0f, std::abs(wanted[i])),
          fmt::format("{}: element {} is {}, not {}", what, i, got[i], wanted[i]));
  }
}

void check_reshards(const ProcessMesh* mesh, const Dims& dims) {
  const Tensor value = iota<float>(dims, 1.0f);
  for (const DistSpec* from : layouts(mesh, dims.rank(), true)) {
    const Tensor start = distribute(value, from);
    for (const DistSpec* to : layouts(mesh, dims.rank(), true))
      check_value(reshard(start, to), value, from->text() + " to " + to->text());
  }
}

void check_ops(const ProcessMesh* mesh) {
  const Tensor x = scale(iota<float>({6, 8}, -20.0f), 0.125, 0.0);
  const Tensor y = scale(iota<float>({8, 5}, -7.0f), 0.25, 0.0);
  for (const DistSpec* a : layouts(mesh, 2, false)) {
    const Tensor dx = distribute(x, a);
    for (const DistSpec* b : layouts(mesh, 2, false)) {
      const std::string what = a->text() + " and " + b->text();
      check_value(matmul(dx, distribute(y, b)), matmul(x, y), "matmul " + what, 1e-5f);
      check_value(add(dx, distribute(x, b)), add(x, x), "add " + what);
      Tensor target = reshard(dx, b);
      if (b == a) target = distribute(x, b);
      add_(target, dx);
      check_value(target, add(x, x), "add_ " + what);
    }
    for (const int axis : {0, 1}) {
      check_value(sum(dx, {axis}), sum(x, {axis}), "sum " + a->text(), 1e-6f);
      check_value(softmax(dx, axis), softmax(x, axis), "softmax " + a->text(), 1e-6f);
    }
    check_value(reshape(dx, {4, 12}), reshape(x, {4, 12}), "reshape " + a->text());
  }
}

/// Dropout draws by global index: the same mask in every layout, seed by seed.
void check_random(Rank& rank, const ProcessMesh* mesh) {
  const Tensor ones = add(iota<float>({7, 9}, 0.0f), Tensor::from_data<float>({1}, {1}));
  std::vector<float> first;
  const RandomKey key = rank.generator.state();
  for (const DistSpec* spec : layouts(mesh, 2, false)) {
    rank.generator.set_state(key);
    const Tensor whole = full_tensor(dropout(distribute(ones, spec), Tensor(), 0.5f));
    if (!whole.defined()) continue;
    if (first.empty()) first = whole.to_vector<float>();
    check(whole.to_vector<float>() == first, "dropout " + spec->text());
  }
}

}  // namespace

void library_checks() {
  World::mpi()->run([](Rank& rank) {
    const auto* line = ProcessMesh::make({4}, {}, {"p"});
    const auto* grid = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
    const auto* some = ProcessMesh::make({3}, {3, 0, 2}, {"q"});  // rank 1 is outside
    for (const ProcessMesh* mesh : {line, grid, some}) {
      for (const Dims& dims : {Dims{5, 3}, Dims{8, 4}, Dims{2, 0, 3}, Dims{}}) check_reshards(mesh, dims);
      check_ops(mesh);
      check_random(rank, mesh);
    }
    check_reshards(line, {260, 301});  // shards above the size that MPI sends at once
  });
}

}  // namespace shard::test
