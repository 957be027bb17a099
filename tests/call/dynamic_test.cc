// Ops whose output shape depends on data: statement 15 of docs/semantics.md.
#include <catch2/catch.hpp>

#include "shard/call/plan_cache.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace dynamic_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Runs of zeros, so that local shards have very different counts: element i is i where i % 5 < 2 or i is in the
/// first third.
Tensor sparse(const Dims& dims) {
  std::vector<float> values(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i % 5 < 2 || 3 * i < values.size() ? static_cast<float>(i + 1) : 0.0f;
  return Tensor::from_data(values, dims);
}

/// Few different values, many times each.
Tensor floor_to_five(const Dims& dims) {
  std::vector<float> values(static_cast<size_t>(dims.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7) % 5) - 2.0f;
  return Tensor::from_data(values, dims);
}

struct Case {
  std::vector<int> mesh;
  const char* layout;
  Dims dims;
};
const std::vector<Case> kCases = {{{1}, "a, -", {4, 3}},
                                  {{2}, "a, -", {7, 3}},
                                  {{3}, "-, a", {5, 7}},
                                  {{4}, "a, -", {2, 5}},
                                  {{2, 2}, "a, b", {6, 5}},
                                  {{2, 3}, "a+b, -", {10, 2}},
                                  {{2, 3}, "-, b+a", {3, 13}},
                                  {{3, 2}, "b, a", {9, 4}},
                                  {{2, 2}, "b, -", {5, 5}},
                                  {{2, 2}, "-, -", {3, 4}},
                                  {{4}, "-, a", {1, 9}},
                                  {{3}, "a", {11}},
                                  {{2}, "", {}},
                                  {{3}, "a, -", {0, 4}},
                                  {{2, 2}, "-, a, b", {2, 5, 3}},
                                  {{2, 2}, "a, - | sum(b)", {5, 3}},
                                  {{2, 2}, "-, - | max(b), sum(a)", {3, 3}}};

std::string text_of(const Case& c) { return fmt::format("{} {}", c.layout, to_string(c.dims)); }

/// Whether every rank of the world knows the shape, and the ranks of the mesh have the value `expected` in balanced
/// shards.
template <class T>
void check_dynamic(const Tensor& got, const Tensor& expected, const std::string& what) {
  check(got.dims() == expected.dims(),
        what + ": shape " + to_string(got.dims()) + " is not " + to_string(expected.dims()));
  const DistTensorImpl& impl = dist_impl(got);
  if (impl.has_local_shard()) {
    const Coordinate at = *impl.spec->mesh()->coordinate(impl.owner->id());
    check(impl.value.dims() == shard_box(impl.spec->layout(), got.dims(), at).dims, what + ": balanced");
  }
  check(full_equals(got, expected.to_vector<T>()), what + ": value");
}

}  // namespace

TEST_CASE(
    "15: nonzero and masked_select of every layout are those of one rank, and all ranks of the world know their "
    "shape") {
  for (const Case& c : kCases) {
    const Tensor x = sparse(c.dims);
    const Tensor mask = cast(x, DType::boolean);
    const Tensor indices = nonzero(x);
    const Tensor chosen = masked_select(x, mask);
    CHECK(indices.dims() == Dims{chosen.numel(), c.dims.rank()});
    const auto* mesh = ProcessMesh::make(c.mesh);
    run_ranks(mesh->size() + 1, [&](Rank& rank) {
      const DistSpec* spec = DistSpec::parse(mesh, c.layout);
      const Tensor d = reshard(distribute(x, DistSpec::replicated(mesh, c.dims.rank())), spec);
      for (int i = 0; i < 2; ++i) check_dynamic<int64_t>(nonzero(d), indices, "nonzero " + text_of(c));
      const auto stats = call::plan_cache_stats(rank);
      check(stats.hits == 1 && stats.misses == 1, "the plan is cached, the shape is not");
      const Tensor m = distribute(mask, DistSpec::replicated(mesh, c.dims.rank()));
      check_dynamic<float>(masked_select(d, m), chosen, "masked_select " + text_of(c));
      check_dynamic<float>(masked_select(distribute(x, DistSpec::replicated(mesh, c.dims.rank())),
                                         reshard(m, DistSpec::replicated(mesh, c.dims.rank()))),
                           chosen, "masked_select replicated " + text_of(c));
    });
  }
}

TEST_CASE("15: one plan serves data with other counts, down to none") {
  const auto* mesh = ProcessMesh::make({3});
  run_ranks(4, [&](Rank& rank) {
    const DistSpec* spec = DistSpec::parse(mesh, "a");
    for (int64_t bound : {7, 0, 3, 1, 100}) {
      std::vector<int64_t> values = {0, 1, 2, 3, 4, 5, 6};
      std::vector<int64_t> expected;
      for (int64_t i = 0; i < 7; ++i) {
        values[static_cast<size_t>(i)] = i < bound ? 0 : i;
        if (values[static_cast<size_t>(i)] != 0) expected.push_back(i);
      }
      const Tensor got = nonzero(distribute(Tensor::from_data(values, {7}), spec));
      check(got.dims() == Dims{static_cast<int64_t>(expected.size()), 1}, "shape");
      check(full_equals(got, expected), "value");
    }
    check(call::plan_cache_stats(rank).misses == 1, "one plan");
  });
}

TEST_CASE("15: unique gives sorted values, first indices, places and counts, whatever the layout") {
  const std::vector<float> values = {3, -1, 3, NAN, 0, -1, 7, NAN, 3, 0, 2};
  const Tensor x = Tensor::from_data(values, {11});
  const auto [out, indices, inverse, counts] = unique(x, true, true, true);
  const std::vector<float> expected = {-1, 0, 2, 3, 7};
  const std::vector<float> found = out.to_vector<float>();
  REQUIRE(found.size() == 6);
  CHECK(std::equal(expected.begin(), expected.end(), found.begin()));
  CHECK(std::isnan(found[5]));
  CHECK(indices.to_vector<int64_t>() == std::vector<int64_t>{1, 4, 10, 0, 6, 3});
  CHECK(inverse.to_vector<int64_t>() == std::vector<int64_t>{3, 0, 3, 5, 1, 0, 4, 5, 3, 1, 2});
  CHECK(counts.to_vector<int64_t>() == std::vector<int64_t>{2, 2, 1, 3, 1, 2});
  const auto [values_only, no_indices, no_inverse, no_counts] = unique(x);
  CHECK((no_indices.numel() == 0 && no_inverse.numel() == 0 && no_counts.numel() == 0));
  for (const Case& c : kCases) {
    const Tensor y = floor_to_five(c.dims);
    const auto [u, i, v, n] = unique(y, true, true, true, DType::int32);
    const auto* mesh = ProcessMesh::make(c.mesh);
    run_ranks(mesh->size() + 1, [&, &u = u, &i = i, &v = v, &n = n](Rank&) {
      const Tensor d =
          reshard(distribute(y, DistSpec::replicated(mesh, c.dims.rank())), DistSpec::parse(mesh, c.layout));
      const auto [du, di, dv, dn] = unique(d, true, true, true, DType::int32);
      check_dynamic<float>(du, u, "values " + text_of(c));
      check_dynamic<int32_t>(di, i, "indices " + text_of(c));
      check_dynamic<int32_t>(dv, v, "inverse " + text_of(c));
      check_dynamic<int32_t>(dn, n, "counts " + text_of(c));
    });
  }
}

TEST_CASE("15: CommPolicy::forbid refuses to exchange counts before a byte is sent") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({2}), "a"));
    const PolicyScope scope(rank, {.comm = CommPolicy::forbid});
    const std::string text = error_of([&] { nonzero(x); }, ErrorCode::policy);
    check_contains(text, "[nonzero] would communicate");
    check_contains(text, "the row counts of the result");
    check(rank.stats().bytes_sent == 0, "nothing was sent");
    // Every rank has the whole value, and every rank of the world is in the mesh: nothing is exchanged.
    check(nonzero(distribute(iota<float>({4}), DistSpec::parse(ProcessMesh::make({2}), "-"))).dims() == Dims{3, 1},
          "replicated");
  });
}

TEST_CASE("15: row counts are in the bytes that a plan promises, and rows that change owner are sent once") {
  run_ranks(3, [](Rank& rank) {
    const auto* mesh = ProcessMesh::make({3});
    std::vector<int64_t> values(9, 0);
    for (size_t i = 0; i < 3; ++i) values[i] = 1;  // all on rank 0: ranks 1 and 2 have to get one row each
    const Tensor x = distribute(Tensor::from_data(values, {9}), DistSpec::parse(mesh, "a"));
    CallRecord record;
    rank.observer = [&](const CallRecord& r) { record = r; };
    const int64_t before = rank.stats().bytes_sent;
    nonzero(x);
    check(record.bytes == 3 * 2 * 8, "planned: counts");
    check(rank.stats().bytes_sent - before == 2 * 8 + (rank.id() == 0 ? 2 * 8 : 0),
          "sent: counts, and rows of 8 bytes");
    check_contains(record.reshards, "rows counted over the world");
  });
}

TEST_CASE("15: user errors of dynamic ops come from the global meta on every rank") {
  run_ranks(3, [](Rank&) {
    const DistSpec* spec = DistSpec::parse(ProcessMesh::make({2}), "a");
    const Tensor x = distribute(iota<float>({4}), spec);
    check_contains(error_of([&] { masked_select(x, x); }, ErrorCode::dtype_mismatch), "must be bool");
    const Tensor mask = distribute(Tensor::from_data(std::vector<bool>(5, true), {5}), spec);
    check_contains(error_of([&] { masked_select(x, mask); }, ErrorCode::shape_mismatch), "one shape");
    check_contains(error_of([&] { unique(x, false, false, false, DType::float32); }, ErrorCode::dtype_mismatch),
                   "int32 or int64");
  });
}

}  // namespace dynamic_test
