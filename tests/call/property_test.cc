// Random op x layout x mesh x sizes against one rank. Data are small integers, so results are compared bit for bit wherever
// the op is exact on them. SHARD_PROPERTY_CASES and SHARD_PROPERTY_SEED choose other runs.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "api.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

namespace {

using Random = std::mt19937_64;

int64_t pick(Random& random, int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); }

Dims random_dims(Random& random, int rank, int64_t largest) {
  Dims dims;
  for (int d = 0; d < rank; ++d) dims.push_back(pick(random, 0, largest));
  return dims;
}

Tensor random_tensor(Random& random, const Dims& dims) {
  std::vector<float> values(static_cast<size_t>(dims.numel()));
  for (float& value : values) value = static_cast<float>(pick(random, -3, 3));
  return Tensor::from_data(values, dims);
}

/// Each axis replicated, on a random dim, or partial with one of the types.
const DistSpec* random_spec(Random& random, const ProcessMesh* mesh, int rank) {
  Layout layout(mesh, rank);
  std::vector<int> axes;
  for (int axis = 0; axis < mesh->rank(); ++axis) axes.push_back(axis);
  std::shuffle(axes.begin(), axes.end(), random);
  for (int axis : axes) {
    const int64_t choice = pick(random, -3, rank - 1);
    if (choice >= 0) layout.dims[static_cast<size_t>(choice)].push_back(axis);
    if (choice == -2) layout.partial[static_cast<size_t>(axis)] = pick(random, 0, 1) ? ReduceType::sum : ReduceType::max;
    if (choice == -3) layout.partial[static_cast<size_t>(axis)] = pick(random, 0, 1) ? ReduceType::min : ReduceType::sum;
  }
  return DistSpec::make(layout);
}

/// A tensor with contributions that differ between ranks, where its layout is partial in sum: a random part is moved to
/// other ranks.
Tensor spread(const Tensor& value, const DistSpec* spec, Random& random) {
  Tensor tensor = distribute(value, spec);
  const bool sums = [&] {
    for (int axis = 0; axis < spec->mesh()->rank(); ++axis) {
      if (spec->layout().partial[static_cast<size_t>(axis)] && *spec->layout().partial[static_cast<size_t>(axis)] != ReduceType::sum) return false;
    }
    return spec->layout().has_partial();
  }();
  if (!sums) return tensor;
  // Adds k at the first coordinate of every partial axis and takes it away at the last, element by element.
  const auto amount = static_cast<float>(pick(random, 1, 3));
  auto& impl = dist_impl(tensor);
  if (!impl.here()) return tensor;
  const Coordinate at = *spec->mesh()->coordinate(impl.owner->id());
  float sign = 1;
  for (int axis = 0; axis < spec->mesh()->rank(); ++axis) {
    if (!spec->partial(axis)) continue;
    const int position = at[static_cast<size_t>(axis)];
    if (spec->mesh()->size(axis) == 1) sign = 0;
    else sign *= position == 0 ? 1.0f : position == spec->mesh()->size(axis) - 1 ? -1.0f : 0.0f;
  }
  float* data = impl.value.data<float>();
  for (int64_t i = 0; i < impl.value.numel(); ++i) data[i] += sign * amount;
  return tensor;
}

/// One op on tensors that are plain or distributed alike.
struct Case {
  const char* name;
  std::vector<Dims> inputs;
  std::function<std::vector<Tensor>(std::vector<Tensor>)> run;
};

std::vector<Case> cases(Random& random, int64_t largest) {
  const int rank = static_cast<int>(pick(random, 1, 3));
  const Dims dims = random_dims(random, rank, largest);
  Dims broadcast = dims;
  for (int d = 0; d < rank; ++d) {
    if (pick(random, 0, 2) == 0) broadcast[d] = 1;
  }
  const int64_t axis = pick(random, 0, rank - 1);
  const bool keep = pick(random, 0, 1) == 1;
  const int64_t m = pick(random, 0, largest), k = pick(random, 0, largest), n = pick(random, 0, largest);
  const bool tx = pick(random, 0, 1) == 1, ty = pick(random, 0, 1) == 1;
  const IntArray ends = rank == 1 ? IntArray{-1} : IntArray{-1, 0};
  IntArray perm;
  for (int d = rank - 1; d >= 0; --d) perm.push_back(d);
  Dims nonzero = dims;
  for (int d = 0; d < rank; ++d) nonzero[d] += 1;
  Dims flipped;
  for (int d = rank - 1; d >= 0; --d) flipped.push_back(nonzero[d]);
  using T = std::vector<Tensor>;
  return {
      {"add", {dims, broadcast}, [](T t) { return T{add(t[0], t[1])}; }},
      {"subtract", {broadcast, dims}, [](T t) { return T{subtract(t[0], t[1])}; }},
      {"multiply", {dims, broadcast}, [](T t) { return T{multiply(t[0], t[1])}; }},
      {"maximum", {dims, broadcast}, [](T t) { return T{maximum(t[0], t[1])}; }},
      {"add_", {dims, broadcast}, [](T t) { return T{add_(t[0], t[1])}; }},
      {"multiply_", {dims, broadcast}, [](T t) { return T{multiply_(t[0], t[1])}; }},
      {"relu", {dims}, [](T t) { return T{relu(t[0])}; }},
      {"relu_", {dims}, [](T t) { return T{relu_(t[0])}; }},
      {"scale", {dims}, [](T t) { return T{scale(t[0], 2.0, 0.0)}; }},
      {"scale with bias", {dims}, [](T t) { return T{scale(t[0], 2.0, 1.0)}; }},
      {"cast", {dims}, [](T t) { return T{cast(t[0], DType::float64)}; }},
      {"cast to int", {dims}, [](T t) { return T{cast(t[0], DType::int64)}; }},
      {"clip", {dims}, [](T t) { return T{clip(t[0], -1.0, 2.0)}; }},
      {"sum", {dims}, [=](T t) { return T{sum(t[0], {axis}, keep)}; }},
      {"sum of all", {dims}, [=](T t) { return T{sum(t[0], {}, keep)}; }},
      {"sum of several axes", {dims}, [=](T t) { return T{sum(t[0], ends, keep)}; }},
      {"max of several axes", {nonzero}, [=](T t) { return T{max(t[0], ends, keep)}; }},
      {"max", {nonzero}, [=](T t) { return T{max(t[0], {axis}, keep)}; }},
      {"min", {nonzero}, [=](T t) { return T{min(t[0], {axis}, keep)}; }},
      {"prod", {dims}, [=](T t) { return T{prod(t[0], {axis}, keep)}; }},
      {"argmax", {nonzero}, [=](T t) { return T{argmax(t[0], axis, keep, false)}; }},
      {"cumsum", {dims}, [=](T t) { return T{cumsum(t[0], axis)}; }},
      {"matmul", {tx ? Dims{k, m} : Dims{m, k}, ty ? Dims{n, k} : Dims{k, n}}, [=](T t) { return T{matmul(t[0], t[1], tx, ty)}; }},
      {"batched matmul", {{3, m, k}, {k, n}}, [=](T t) { return T{matmul(t[0], t[1])}; }},
      {"matmul of vectors", {{k}, {k}}, [=](T t) { return T{matmul(t[0], t[1])}; }},
      {"matmul of broadcast batches", {{1, m, k}, ty ? Dims{2, n, k} : Dims{2, k, n}}, [=](T t) { return T{matmul(t[0], t[1], false, ty)}; }},
      {"vector times matrix", {{k}, ty ? Dims{2, n, k} : Dims{2, k, n}}, [=](T t) { return T{matmul(t[0], t[1], tx, ty)}; }},
      {"matrix times vector", {tx ? Dims{k, m} : Dims{m, k}, {k}}, [=](T t) { return T{matmul(t[0], t[1], tx, ty)}; }},
      {"transpose", {dims}, [=](T t) { return T{transpose(t[0], perm)}; }},
      {"transpose_", {dims}, [=](T t) { return T{transpose_(t[0], perm)}; }},
      {"reshape", {nonzero}, [=](T t) { return T{reshape(t[0], IntArray(flipped))}; }},
      {"reshape_", {nonzero}, [=](T t) { return T{reshape_(t[0], IntArray(flipped))}; }},
      {"reshape to flat", {nonzero}, [=](T t) { return T{reshape(t[0], {nonzero.numel()})}; }},
      {"flatten", {nonzero}, [=](T t) { return T{flatten(t[0], 0, -1)}; }},
      {"unsqueeze", {dims}, [=](T t) { return T{unsqueeze(t[0], {axis})}; }},
      {"squeeze", {broadcast}, [=](T t) { return T{squeeze(t[0], {axis})}; }},
      {"concat", {dims, dims, dims}, [=](T t) { return T{concat({t[0], t[1], t[2]}, axis)}; }},
      {"stack", {dims, dims}, [=](T t) { return T{stack({t[0], t[1]}, static_cast<int>(axis))}; }},
      {"concat at the end", {dims, dims}, [=](T t) { return T{concat({t[0], t[1]}, -1)}; }},
      {"stack at the end", {dims, dims, dims}, [=](T t) { return T{stack({t[0], t[1], t[2]}, -1)}; }},
      {"split", {nonzero}, [=](T t) { return split(t[0], {1, -1}, axis); }},
      {"slice", {nonzero}, [=](T t) { return T{slice(t[0], {axis}, {0}, {nonzero[static_cast<int>(axis)] / 2 + 1})}; }},
      {"expand", {broadcast}, [=](T t) { return T{expand(t[0], IntArray(dims))}; }},
      {"where", {dims, dims, broadcast}, [](T t) { return T{where(cast(t[0], DType::boolean), t[1], t[2])}; }},
      {"gather", {nonzero, {4}}, [=](T t) { return T{gather(t[0], cast(clip(t[1], 0.0, static_cast<double>(nonzero[static_cast<int>(axis)] - 1)), DType::int64), axis)}; }},
      {"embedding", {{m, k}, {4, n}}, [=](T t) { return T{embedding(cast(clip(t[0], 0.0, 3.0), DType::int64), t[1])}; }},
      {"minimum", {dims, broadcast}, [](T t) { return T{minimum(t[0], t[1])}; }},
      {"equal", {dims, broadcast}, [](T t) { return T{equal(t[0], t[1])}; }},
      {"expand to new dims", {dims}, [=](T t) {
         Dims wide = dims;
         wide.insert(0, 3);
         return T{expand(t[0], IntArray(wide))};
       }},
      {"sgd_", {dims, {1}, dims}, [](T t) {
         Tensor none;
         sgd_(t[0], t[1], t[2], none);
         return T{t[0], t[2]};
       }},
      {"view then write", {nonzero}, [=](T t) {
         Tensor y = unsqueeze(t[0], {0});
         add_(y, y);
         return T{t[0], y};
       }},
  };
}

void run_case(uint64_t seed, std::string& label) {
  Random random(seed);
  // 1 to 6 ranks, on a line or a grid.
  const int n = static_cast<int>(pick(random, 1, 6));
  std::vector<int> shape{n};
  if (pick(random, 0, 1) == 1) shape = {n % 3 + 1, static_cast<int>(pick(random, 1, 2))};
  const auto* mesh = ProcessMesh::make(shape);
  auto all = cases(random, 2 * *std::max_element(shape.begin(), shape.end()) + 1);
  const Case& chosen = all[static_cast<size_t>(pick(random, 0, static_cast<int64_t>(all.size()) - 1))];
  std::vector<Tensor> plain;
  std::vector<const DistSpec*> specs;
  label = chosen.name;
  for (const Dims& dims : chosen.inputs) {
    plain.push_back(random_tensor(random, dims));
    specs.push_back(random_spec(random, mesh, dims.rank()));
    label += " " + to_string(dims) + " " + specs.back()->text();
  }
  label += " on " + mesh->describe();
  std::vector<Tensor> copies;
  for (const Tensor& tensor : plain) copies.emplace_back(clone(tensor.get().value));
  const std::vector<Tensor> expected = chosen.run(copies);
  const uint64_t spread_seed = random();
  run_ranks(mesh->size() + static_cast<int>(pick(random, 0, 1)), [&](Rank&) {
    Random same(spread_seed);
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < plain.size(); ++i) inputs.push_back(spread(plain[i], specs[i], same));
    const std::vector<Tensor> actual = chosen.run(inputs);
    check(actual.size() == expected.size(), "number of outputs");
    for (size_t i = 0; i < actual.size(); ++i) {
      check(actual[i].meta() == expected[i].meta(), "meta " + to_string(actual[i].meta()) + " is not " + to_string(expected[i].meta()));
      const Tensor whole = full(actual[i]);
      if (!whole.defined()) continue;
      const Tensor doubles = cast(whole, DType::float64);
      check(doubles.to_vector<double>() == cast(expected[i], DType::float64).to_vector<double>(),
            "values " + to_text(whole) + " are not " + to_text(expected[i]) + "; output layout " + spec_of(actual[i])->text());
    }
  });
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("property: a random op on random layouts equals the same op on one rank, bit for bit") {
  const uint64_t count = from_environment("SHARD_PROPERTY_CASES", 3000);
  const uint64_t first = from_environment("SHARD_PROPERTY_SEED", 1);
  int failures = 0;
  for (uint64_t seed = first; seed < first + count && failures < 10; ++seed) {
    std::string label;
    try {
      run_case(seed, label);
    } catch (const std::exception& error) {
      ++failures;
      UNSCOPED_INFO("SHARD_PROPERTY_SEED=" << seed << " SHARD_PROPERTY_CASES=1: " << label << ": " << error.what());
    }
  }
  REQUIRE(failures == 0);
}
