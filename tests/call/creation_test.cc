// Creation ops with a layout: each rank makes its local shard in place. The meaning of layouts is tested in
// reshard/ and spmd/.
#include "shard/call/plan_cache.h"
#include "shard/dist/dist_tensor.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace creation_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr uint64_t kSeed = 77;

struct Place {
  const ProcessMesh* mesh;
  std::vector<const char*> layouts;  // of two dims
};

std::vector<Place> places() {
  return {{ProcessMesh::make({3}), {"a, -", "-, a", "-, -"}},
          {ProcessMesh::make({2, 2}), {"a, b", "a+b, -", "-, b+a", "b, -"}},
          {ProcessMesh::make({2, 3}), {"a, b", "b+a, -", "-, a"}},
          {ProcessMesh::make({2}, {2, 0}), {"a, -"}}};  // other ranks are outside
}

std::vector<double> values_of(const Tensor& tensor) { return cast(tensor, DType::float64).to_vector<double>(); }

/// Makes a matrix with a layout, on every mesh and layout, and compares it with the plain call.
void compare(const std::function<Tensor(const DistSpec*)>& on_mesh, const std::function<Tensor()>& plain) {
  for (const Place& place : places()) {
    World::local(6, {.seed = kSeed})->run([&](Rank& rank) {
      for (const char* layout : place.layouts) {
        const DistSpec* spec = DistSpec::parse(place.mesh, layout);
        rank.generator.set_seed(kSeed);
        rank.plain_generator.set_seed(kSeed);
        const CommStats before = rank.stats();
        const Tensor made = on_mesh(spec);
        check(rank.stats().collectives == before.collectives && rank.stats().bytes_sent == before.bytes_sent,
              "made without communication");
        check(spec_of(made) == spec, "the layout that was asked for");
        const std::vector<double> expected = values_of(plain());
        const Tensor whole = full_tensor(made);
        check(!whole.defined() || values_of(whole) == expected, std::string(layout) + " on " + place.mesh->describe());
      }
    });
  }
}

}  // namespace

TEST_CASE("6: creation ops with a layout make each rank's shard of the plain value") {
  compare([](const DistSpec* spec) { return full({5, 7}, 2.5, spec); }, [] { return full({5, 7}, 2.5); });
  compare(
      [](const DistSpec* spec) {
        return zeros({4, 3}, spec, DType::int32);
      },
      [] {
        return zeros({4, 3}, DType::int32);
      });
  compare([](const DistSpec* spec) { return ones({1, 0}, spec); }, [] { return ones({1, 0}); });
  compare([](const DistSpec* spec) { return eye(5, spec); }, [] { return eye(5); });
  compare([](const DistSpec* spec) { return eye(4, spec, 7, DType::int64); }, [] { return eye(4, 7, DType::int64); });
  for (const Place& place : places()) {
    run_ranks(6, [&](Rank&) {
      const DistSpec* spec = DistSpec::parse(place.mesh, "a");
      check(full_equals(arange(3, 25, spec, 4), arange(3, 25, 4).to_vector<int64_t>()), "arange of integers");
      check(full_equals(arange(1.0, -1.0, spec, -0.1, DType::float32),
                        arange(1.0, -1.0, -0.1, DType::float32).to_vector<float>()),
            "arange of floats");
    });
  }
}

TEST_CASE("a range of one number ends there, and the position of the largest of all elements needs no axis") {
  CHECK(arange(3).to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2});
  CHECK(arange(2, DType::float32).to_vector<float>() == std::vector<float>{0, 1});
  const Tensor x = Tensor::from_data<float>({1, 9, 0, 3}, {2, 2});
  CHECK(argmax(x).to_vector<int64_t>() == std::vector<int64_t>{1});
  CHECK(argmin(x, DType::int32).to_vector<int32_t>() == std::vector<int32_t>{2});
  CHECK(argmax(x, 1).to_vector<int64_t>() == std::vector<int64_t>{1, 1});
  run_ranks(2, [&](Rank&) {
    const DistSpec* spec = DistSpec::parse(ProcessMesh::make({2}), "a");
    check(full_equals(arange(5, spec), arange(5).to_vector<int64_t>()), "a range in shards");
  });
}

TEST_CASE("34: random numbers that are made on a mesh have the bits of the plain call with the same key") {
  compare(
      [](const DistSpec* spec) {
        return uniform({9, 7}, spec, DType::float32, -2.0, 3.0);
      },
      [] {
        return uniform({9, 7}, DType::float32, -2.0, 3.0);
      });
  compare(
      [](const DistSpec* spec) {
        return randint(-3, 1000, spec, {5, 6});
      },
      [] {
        return randint(-3, 1000, {5, 6});
      });
  compare(
      [](const DistSpec* spec) {
        return gaussian({9, 7}, spec, 1.0f, 2.0f);
      },
      [] {
        return gaussian({9, 7}, 1.0f, 2.0f);
      });
  compare(
      [](const DistSpec* spec) {
        return gaussian({6, 5}, spec, 0, 1, 3, DType::float64);
      },
      [] {
        return gaussian({6, 5}, 0, 1, 3, DType::float64);
      });
}

TEST_CASE("34: a permutation that is made on a mesh is the plain one") {
  for (const Place& place : places()) {
    World::local(6, {.seed = kSeed})->run([&](Rank&) {
      const std::vector<int64_t> expected = randperm(31).to_vector<int64_t>();
      check(full_equals(randperm(31, DistSpec::parse(place.mesh, "a")), expected), place.mesh->describe());
    });
  }
}

TEST_CASE(
    "35: a creation op on a mesh draws from the world's generator, outside the mesh too, and only once it is checked") {
  run_ranks(3, [](Rank& rank) {
    const auto* mesh = ProcessMesh::make({2});
    const DistSpec* spec = DistSpec::parse(mesh, "a");
    const RandomKey plain = rank.plain_generator.state();
    uniform({5}, spec);
    error_of([&] { uniform({5, 2}, spec); }, ErrorCode::layout);
    error_of([&] { uniform({5}, spec, DType::float32, 2, 1); }, ErrorCode::invalid_argument);
    gaussian({5}, spec);
    check(rank.generator.state().offset == 2, "two draws");
    check(rank.plain_generator.state().offset == plain.offset, "none of the plain generator");
  });
}

TEST_CASE("linspace and logspace include both ends, also in shards, and need an element") {
  CHECK(linspace(1, 3, 5).to_vector<float>() == std::vector<float>{1, 1.5F, 2, 2.5F, 3});
  CHECK(linspace(7, 9, 1).to_vector<float>() == std::vector<float>{7});
  CHECK(linspace(5, -5, 3, DType::int64).to_vector<int64_t>() == std::vector<int64_t>{5, 0, -5});
  CHECK(linspace(0.1, 0.7, 7, DType::float64).to_vector<double>().back() == 0.7);
  CHECK(logspace(0, 3, 4, 2).to_vector<float>() == std::vector<float>{1, 2, 4, 8});
  CHECK(logspace(-1, 1, 3).to_vector<float>() == std::vector<float>{0.1F, 1, 10});
  check_contains(error_of([] { linspace(0, 1, 0); }, ErrorCode::invalid_argument),
                 "[linspace] the number of elements is 0, but must be at least 1");
  check_contains(error_of([] { linspace(0, 1, 2, DType::boolean); }, ErrorCode::no_kernel), "linspace");
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  const std::vector<float> whole = linspace(0, 1, 8).to_vector<float>();
  run_ranks(3, [&](Rank&) {
    for (const char* layout : {"p", "-", "- | sum(p)"})
      check(full_equals(linspace(0, 1, 8, DistSpec::parse(mesh, layout)), whole), std::string("linspace ") + layout);
  });
}

TEST_CASE("7: made in a pending layout, a value stands once, and identities elsewhere") {
  const auto* mesh = ProcessMesh::make({2, 3});
  const std::vector<float> counted = arange(1, 8, 1, DType::float32).to_vector<float>();
  for (const std::string layout :
       {"a | sum(b)", "- | sum(a), max(b)", "- | max(a), sum(b)", "b | prod(a)", "- | avg(b)", "- | min(a), avg(b)"}) {
    run_ranks(6, [&](Rank& rank) {
      const DistSpec* spec = DistSpec::parse(mesh, layout);
      check(full_equals(arange(1, 8, spec, 1, DType::float32), counted), "arange " + layout);
      if (layout.find("avg") != std::string::npos)
        return;  // the average of three equal floats is rounded, and of integers refused
      check(full_equals(ones({5}, spec, DType::int32), std::vector<int>(5, 1)), "ones " + layout);
      rank.generator.set_seed(5);
      const Tensor pending = uniform({7}, spec);
      rank.generator.set_seed(5);
      check(full_tensor(pending).to_vector<float>() ==
                full_tensor(uniform({7}, DistSpec::parse(mesh, "-"))).to_vector<float>(),
            "uniform " + layout);
    });
  }
}

TEST_CASE("7: only truth values are made pending with any or all, and no integers pending with an average") {
  const auto* mesh = ProcessMesh::make({2, 3});
  run_ranks(6, [&](Rank&) {
    for (const char* layout : {"- | any(a)", "- | all(a), all(b)"}) {
      const DistSpec* spec = DistSpec::parse(mesh, layout);
      check(full_tensor(ones({3}, spec, DType::boolean)).to_vector<bool>() == std::vector<bool>(3, true), layout);
      check(full_tensor(zeros({3}, spec, DType::boolean)).to_vector<bool>() == std::vector<bool>(3, false), layout);
      check_contains(error_of([&] { ones({3}, spec, DType::int32); }, ErrorCode::layout), "make it of dtype bool");
    }
    error_of([&] { ones({3}, DistSpec::parse(mesh, "- | avg(b)"), DType::int64); }, ErrorCode::layout);
  });
}

TEST_CASE("17: a rank outside the mesh gets an absent shard, and infers the same meta") {
  run_ranks(3, [](Rank& rank) {
    const DistSpec* spec = DistSpec::parse(ProcessMesh::make({2}), "a");
    const Tensor x = arange(0, 5, spec);
    check(x.dims() == Dims{5} && x.dtype() == DType::int64, "global meta");
    if (rank.id() == 2) error_of([&] { local(x); }, ErrorCode::wrong_rank);
    else check(local(x).dims() == Dims{rank.id() == 0 ? 3 : 2}, "the shard");
  });
}

TEST_CASE("36: a layout that does not fit a creation op is an error that names op, layout and result") {
  run_ranks(2, [](Rank&) {
    const auto* mesh = ProcessMesh::make({2});
    const std::string dims = error_of([&] { zeros({4, 2}, DistSpec::parse(mesh, "a")); }, ErrorCode::layout);
    check_contains(dims, "[zeros] layout [a] on mesh(a=2) has 1 dims, but the result f32[4, 2] has 2");
    const std::string large =
        error_of([&] { ones({4}, DistSpec::parse(ProcessMesh::make({3}), "a")); }, ErrorCode::layout);
    check_contains(large, "names process 2, but the world has ranks 0 to 1");
    const DistSpec* none = nullptr;
    check_contains(error_of([&] { ones({4}, none); }, ErrorCode::layout), "[ones] the layout is null");
    check_contains(error_of([&] { arange(0, 5, DistSpec::parse(mesh, "a"), 0); }, ErrorCode::invalid_argument),
                   "step is 0");
    check_contains(error_of([&] { zeros({-1}, DistSpec::parse(mesh, "a")); }, ErrorCode::out_of_range), "zeros");
  });
}

TEST_CASE("12: a creation op on a mesh has its plan in the cache, and no step moves anything") {
  run_ranks(2, [](Rank& rank) {
    const DistSpec* spec = DistSpec::parse(ProcessMesh::make({2}), "a, -");
    std::vector<CallRecord> records;
    rank.observer = [&](const CallRecord& record) { records.push_back(record); };
    PolicyScope forbid(rank, {.comm = CommPolicy::forbid});
    for (int i = 0; i < 3; ++i) zeros({6, 2}, spec);
    zeros({6, 3}, spec);
    full({6, 2}, 1, spec);
    const call::CacheStats stats = call::plan_cache_stats(rank);
    check(stats.misses == 3 && stats.hits == 2, "shape and value are in the key");
    check(records.size() == 5 && records[0].op == "full" && records[0].outputs == "out [a, -]" &&
              records[0].reshards.empty(),
          "recorded");
  });
}

}  // namespace creation_test
