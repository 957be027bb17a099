// Random numbers: statements 34 and 35 of docs/semantics.md.
#include <catch2/catch.hpp>

#include <map>
#include <numeric>

#include "shard/call/dense_call.h"
#include "shard/call/item.h"
#include "shard/kernels/registry.h"
#include "shard/ops/random_dense.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace random_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr uint64_t kSeed = 2024;

/// Meshes of 1, 2, 3, 4 and 6 ranks, and layouts of a 2-D tensor on them.
struct Placement {
  const ProcessMesh* mesh;
  std::vector<const char*> layouts;
};
std::vector<Placement> placements() {
  std::vector<Placement> all;
  for (int n : {1, 2, 3, 4}) all.push_back({ProcessMesh::make({n}), {"a, -", "-, a", "-, -"}});
  all.push_back({ProcessMesh::make({2, 3}), {"a, b", "b, a", "a+b, -", "-, b+a", "-, a"}});
  return all;
}

// A word for four elements: rows of these widths start at every position in such a block. 4 is all body, 1 to 3 all
// tail.
const std::vector<Dims> kShapes = {{7, 1}, {5, 3}, {4, 4}, {3, 37}, {2, 9001}, {0, 5}};

/// The result of `call` on plain tensors with the initial state of a world with seed kSeed.
template <class F>
Tensor plain(const F& call) {
  Generator& generator = call::thread_generator();
  const RandomKey saved = generator.state();
  generator.set_seed(kSeed);
  Tensor result = call();
  generator.set_state(saved);
  return result;
}

Tensor unit(const Dims& dims, DType dtype) { return full(IntArray(dims), 1.0, dtype); }

}  // namespace

TEST_CASE("34: dropout gives the same bits for every mesh, layout and uneven split") {
  for (const DType dtype : dtypes_of(FloatTypes{})) {
    for (const Dims& dims : kShapes) {
      const Tensor x = unit(dims, dtype);
      Tensor mask;
      const Tensor expected = plain([&] {
        auto [out, kept] = dropout_intermediate(x, Tensor(), 0.3);
        mask = kept;
        return out;
      });
      for (const Placement& placement : placements()) {
        run_ranks(placement.mesh->size() + 1,
                  [&](Rank& rank) {
                    const RandomKey start = rank.generator.state();
                    for (const char* layout : placement.layouts) {
                      rank.generator.set_state(start);
                      const auto [out, kept] =
                          dropout_intermediate(distribute(x, DistSpec::parse(placement.mesh, layout)), Tensor(), 0.3);
                      check(full_equals(kept, mask.to_vector<uint8_t>()), "mask " + to_string(dims) + " " + layout);
                      const Tensor whole = full_tensor(cast(out, DType::float64));
                      if (whole.defined())
                        check(whole.to_vector<double>() == cast(expected, DType::float64).to_vector<double>(), layout);
                    }
                  },
                  {.seed = kSeed});
      }
    }
  }
}

TEST_CASE("34: uniform and gaussian shards have the bits of the whole for every mesh, layout and uneven split") {
  for (const DType dtype : dtypes_of(FloatTypes{})) {
    for (const Dims& dims : kShapes) {
      const Tensor numbers[] = {plain([&] { return uniform(IntArray(dims), dtype, -2.0, 3.0); }),
                                plain([&] { return gaussian(IntArray(dims), 1.0f, 2.0f, 0, dtype); })};
      for (const Placement& placement : placements()) {
        run_ranks(placement.mesh->size(), [&](Rank& rank) {
          for (const char* layout : placement.layouts) {
            const DistSpec* spec = DistSpec::parse(placement.mesh, layout);
            const ShardBox shard = shard_box(spec->layout(), dims, *placement.mesh->coordinate(rank.id()));
            const Box boxes[] = {{dims, shard.begin}};
            const LocalCall local{{}, boxes, nullptr, {kSeed, 0}};
            const OpContext ctx{"random", &local};
            const Tensor shards[] = {
                Tensor(dense::uniform(ctx, {shard.dims, dtype}, shard.dims, dtype, -2.0, 3.0, 0, kCpu)),
                Tensor(dense::gaussian(ctx, {shard.dims, dtype}, shard.dims, 1.0f, 2.0f, 0, dtype, kCpu))};
            for (size_t i = 0; i < 2; ++i) {
              const Tensor whole = full_tensor(cast(from_local(shards[i], spec, dims, dtype), DType::float64));
              check(whole.to_vector<double>() == cast(numbers[i], DType::float64).to_vector<double>(),
                    std::string(i == 0 ? "uniform " : "gaussian ") + to_string(dims) + " " + layout);
            }
          }
        });
      }
    }
  }
}

TEST_CASE("34: a number depends on its global index alone, not on where a run of numbers starts") {
  constexpr int64_t kCount = 9000;  // more than two runs of the kernel
  const std::vector<float> whole = plain([&] { return uniform({kCount}); }).to_vector<float>();
  for (int64_t begin : {0, 1, 2, 3, 4, 5, 4095, 4096, 4097}) {
    for (int64_t count : {1, 2, 3, 4, 5, 15, 16, 17, 4096, 4099}) {
      const Box boxes[] = {{{kCount}, {begin}}};
      const LocalCall local{{}, boxes, nullptr, {kSeed, 0}};
      const DenseTensor shard = dense::uniform(OpContext{"uniform", &local}, {{count}, DType::float32}, {count},
                                               DType::float32, -1.0, 1.0, 0, kCpu);
      INFO(begin << " " << count);
      REQUIRE(std::equal(shard.data<float>(), shard.data<float>() + count, whole.begin() + begin));
    }
  }
}

TEST_CASE("34: dropout of a pending sum drops elements of the sum") {
  run_ranks(3,
            [](Rank& rank) {
              const auto* mesh = ProcessMesh::make({2});
              const std::vector<float> expected = plain([] {
                                                    return dropout(unit({5, 3}, DType::float32), Tensor());
                                                  }).to_vector<float>();
              const Tensor half = rank.id() < 2 ? full({5, 3}, 0.5) : Tensor();
              const Tensor pending = from_local(half, DistSpec::parse(mesh, "-, - | sum(a)"), {5, 3}, DType::float32);
              check(full_equals(dropout(pending, Tensor()), expected), "the sum is dropped, not each contribution");
            },
            {.seed = kSeed});
}

TEST_CASE("35: the world's generator advances alike on all ranks, outside the mesh too") {
  std::array<RandomKey, 4> states;
  run_ranks(4,
            [&](Rank& rank) {
              const auto* mesh = ProcessMesh::make({3});
              const Tensor x = distribute(unit({5}, DType::float32), DistSpec::parse(mesh, "a"));
              check(rank.generator.state().seed == kSeed && rank.generator.state().offset == 0,
                    "starts at the world's seed");
              for (int i = 0; i < 3; ++i) dropout(x, Tensor());
              relu(x);
              error_of([&] { dropout(x, Tensor(), 1.5); }, ErrorCode::invalid_argument);
              states[static_cast<size_t>(rank.id())] = rank.generator.state();
            },
            {.seed = kSeed});
  for (const RandomKey& state : states) CHECK((state.seed == kSeed && state.offset == 3));
}

TEST_CASE("35: each call draws new numbers") {
  run_ranks(2, [](Rank&) {
    const Tensor x = distribute(unit({64}, DType::float32), DistSpec::parse(ProcessMesh::make({2}), "a"));
    const Tensor a = full_tensor(dropout(x, Tensor()));
    const Tensor b = full_tensor(dropout(x, Tensor()));
    check(a.to_vector<float>() != b.to_vector<float>(), "different masks");
    const Tensor fixed = full_tensor(dropout(x, Tensor(), 0.5, false, "upscale_in_train", 9, true));
    const Tensor again = full_tensor(dropout(x, Tensor(), 0.5, false, "upscale_in_train", 9, true));
    check(fixed.to_vector<float>() == again.to_vector<float>(), "a fixed seed gives the same");
  });
}

TEST_CASE("35: calls on plain tensors use a generator of their own") {
  run_ranks(2, [](Rank& rank) {
    const RandomKey world = rank.generator.state();
    const RandomKey own = call::thread_generator().state();
    const Tensor x = unit({8}, DType::float32);
    if (rank.id() == 0) dropout(x, Tensor());  // need not be called on all ranks
    check(rank.generator.state().offset == world.offset, "the world's generator stays");
    check(call::thread_generator().state().offset == own.offset + (rank.id() == 0 ? 1 : 0), "the thread's advances");
    dropout(distribute(x, DistSpec::parse(ProcessMesh::make({2}), "a")), Tensor());
    check(rank.generator.state().offset == world.offset + 1, "a distributed call draws from the world");
    check(call::thread_generator().state().offset == own.offset + (rank.id() == 0 ? 1 : 0), "and not from the thread");
  });
}

namespace {

/// Layouts on 1, 2, 3, 4, 6 and 8 ranks: every dim, several axes, uneven and empty shards.
std::vector<Placement> wide_placements() {
  std::vector<Placement> all = placements();
  all.push_back({ProcessMesh::make({8}), {"a, -", "-, a"}});
  all.push_back({ProcessMesh::make({2, 2, 2}), {"a+b, c", "c, b+a", "a+b+c, -", "-, c+a", "b, -"}});
  return all;
}

/// Runs `make` (shard context and dims -> dense tensor) for each rank's shard, and compares the whole with
/// `expected`.
template <class Make>
void check_shards(const Tensor& expected, const ProcessMesh* mesh, const std::string& layout, const Make& make) {
  run_ranks(mesh->size(), [&](Rank& rank) {
    const DistSpec* spec = DistSpec::parse(mesh, layout);
    const ShardBox shard = shard_box(spec->layout(), expected.dims(), *mesh->coordinate(rank.id()));
    const Box boxes[] = {{expected.dims(), shard.begin}};
    const LocalCall local{{}, boxes, nullptr, {kSeed, 0}};
    const Tensor made(make(OpContext{"random", &local}, shard.dims));
    const Tensor whole = full_tensor(from_local(made, spec, expected.dims(), expected.dtype()));
    check(cast(whole, DType::int64).to_vector<int64_t>() == cast(expected, DType::int64).to_vector<int64_t>(),
          layout + " " + to_string(expected.dims()));
  });
}

}  // namespace

TEST_CASE("34: randint shards have the bits of the whole for every mesh, layout and uneven split") {
  for (const DType dtype : {DType::int32, DType::int64}) {
    for (const Dims& dims : kShapes) {
      const Tensor expected = plain([&] { return randint(-2000000000, 2000000000, IntArray(dims), dtype); });
      for (const Placement& placement : wide_placements()) {
        for (const char* layout : placement.layouts) {
          check_shards(expected, placement.mesh, layout, [&](const OpContext& ctx, const Dims& shard) {
            return dense::randint(ctx, {shard, dtype}, -2000000000, 2000000000, shard, dtype, 0, kCpu);
          });
        }
      }
    }
  }
}

TEST_CASE("34: bernoulli gives the same bits for every mesh, layout and uneven split") {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const Dims& dims : kShapes) {
      const Tensor p = full(IntArray(dims), 0.3, dtype);
      const std::vector<double> expected =
          cast(plain([&] { return bernoulli(p); }), DType::float64).to_vector<double>();
      for (const Placement& placement : wide_placements()) {
        run_ranks(placement.mesh->size() + 1,
                  [&](Rank& rank) {
                    const RandomKey start = rank.generator.state();
                    for (const char* layout : placement.layouts) {
                      rank.generator.set_state(start);
                      check(full_equals(
                                cast(bernoulli(distribute(p, DistSpec::parse(placement.mesh, layout))), DType::float64),
                                expected),
                            layout);
                    }
                  },
                  {.seed = kSeed});
      }
    }
  }
}

TEST_CASE("34: randperm shards agree with the whole, and each element is made from its index") {
  for (const int n : {0, 1, 2, 3, 7, 16, 37, 1000, 4096, 4097}) {
    const Tensor expected = plain([&] { return randperm(n); });
    for (const Placement& placement : wide_placements()) {
      std::vector<std::string> layouts = {"-"};
      for (int axis = 0; axis < placement.mesh->rank(); ++axis) layouts.push_back(placement.mesh->name(axis));
      if (placement.mesh->rank() > 1) layouts.push_back("b+a");
      for (const std::string& layout : layouts) {
        // dense::randperm makes a whole tensor; a call on a mesh runs the kernel on a shard.
        check_shards(expected, placement.mesh, layout, [&](const OpContext& ctx, const Dims& shard) {
          DenseTensor out = DenseTensor::allocate(kCpu, {shard, DType::int64});
          kernel_table("randperm")
              .find<void(const OpContext&, RandomKey, DenseTensor&)>(ctx, kCpu, DType::int64)
              .function(ctx, ctx.local->random, out);
          return out;
        });
      }
    }
  }
}

TEST_CASE("34: randperm is a permutation for every size, and puts each number everywhere") {
  for (int n = 0; n < 400; ++n) {
    std::vector<int32_t> values = randperm(n, DType::int32).to_vector<int32_t>();
    std::sort(values.begin(), values.end());
    std::vector<int32_t> sorted(static_cast<size_t>(n));
    std::iota(sorted.begin(), sorted.end(), 0);
    INFO(n);
    REQUIRE(values == sorted);
  }
  std::vector<int64_t> large = randperm(100003).to_vector<int64_t>();
  std::sort(large.begin(), large.end());
  std::vector<int64_t> all(100003);
  std::iota(all.begin(), all.end(), 0);
  CHECK(large == all);
  // Chi-squared tests at a level of about 1e-6: which number is at a position, and which of the 24 orders of four
  // occurs.
  for (const int n : {2, 3, 4, 5, 9, 10}) {
    constexpr int kDraws = 6000;
    std::vector<int> counts(static_cast<size_t>(n * n));
    std::map<std::vector<int64_t>, int> orders;
    for (int draw = 0; draw < kDraws; ++draw) {
      const std::vector<int64_t> values = randperm(n).to_vector<int64_t>();
      for (size_t i = 0; i < values.size(); ++i) ++counts[i * static_cast<size_t>(n) + static_cast<size_t>(values[i])];
      ++orders[values];
    }
    double chi = 0;
    for (int count : counts) chi += std::pow(count - kDraws / double(n), 2) / (kDraws / double(n));
    const double freedom = (n - 1) * (n - 1);
    INFO("n " << n << " chi2 " << chi);
    CHECK(chi < freedom + 5 * std::sqrt(2 * freedom) + 20);
    if (n == 4) {
      CHECK(orders.size() == 24);
      double chi_orders = 0;
      for (const auto& [order, count] : orders) chi_orders += std::pow(count - kDraws / 24.0, 2) / (kDraws / 24.0);
      CHECK(chi_orders < 23 + 5 * std::sqrt(46.0) + 20);
    }
  }
}

TEST_CASE("34: randint is uniform from low to before high, and bernoulli has the mean of its probabilities") {
  std::vector<int> counts(7);
  for (int64_t value : randint(-3, 4, {70000}).to_vector<int64_t>()) {
    REQUIRE(value >= -3);
    REQUIRE(value < 4);
    ++counts[static_cast<size_t>(value + 3)];
  }
  for (int count : counts) CHECK(std::abs(count - 10000) < 600);
  CHECK(randint(5, 6, {3}).to_vector<int64_t>() == std::vector<int64_t>{5, 5, 5});
  const std::vector<int64_t> ends = randint(INT32_MIN, INT32_MAX, {1000}).to_vector<int64_t>();
  CHECK(*std::min_element(ends.begin(), ends.end()) < -1900000000);
  CHECK(*std::max_element(ends.begin(), ends.end()) > 1900000000);
  CHECK(randint(0, 9, {8}, DType::int64, 5).to_vector<int64_t>() ==
        randint(0, 9, {8}, DType::int64, 5).to_vector<int64_t>());
  error_of([] { randint(3, 3, {2}); }, ErrorCode::invalid_argument);
  error_of([] { randint(0, 3, {2}, DType::float32); }, ErrorCode::dtype_mismatch);
  error_of([] { randperm(-1); }, ErrorCode::invalid_argument);
  const Tensor drawn = bernoulli(full({50000}, 0.2));
  CHECK(item(mean(drawn)).to<double>() == Approx(0.2).margin(0.02));
  CHECK(item(sum(bernoulli(full({100}, 1.0)))).to<double>() == 100);
  CHECK(item(sum(bernoulli(full({100}, 0.0)))).to<double>() == 0);
  error_of([] { bernoulli(full({2}, 1.5)); }, ErrorCode::invalid_argument);
}

}  // namespace random_test
