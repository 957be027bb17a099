// Lists of tensors in one collective per step, and asynchronous reshards that are waited for when their result is
// read.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "support/mesh_run.h"

namespace batch_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Reshards `count` tensors of different shapes and compares with resharding each alone; returns the number of
/// collectives in which this rank took part.
uint64_t move_list(Rank& rank, const ProcessMesh* mesh, int count, const char* from, const char* to) {
  std::vector<Tensor> tensors;
  std::vector<const DistSpec*> specs;
  std::vector<std::vector<float>> values;
  for (int i = 0; i < count; ++i) {
    const Tensor value = iota<float>({1 + i % 7, 3 + i % 5}, static_cast<float>(i));
    values.push_back(value.to_vector<float>());
    tensors.push_back(distribute(value, DistSpec::parse(mesh, from)));
    specs.push_back(DistSpec::parse(mesh, to));
  }
  const CommStats before = rank.stats();
  const std::vector<Tensor> moved = reshard(tensors, specs);
  const CommStats after = rank.stats();
  for (int i = 0; i < count; ++i) {
    const auto k = static_cast<size_t>(i);
    check(spec_of(moved[k]) == specs[k], "the layout is the one asked for");
    check(full_equals(moved[k], values[k]), fmt::format("tensor {} from {} to {}", i, from, to));
  }
  return after.collectives - before.collectives;
}

}  // namespace

TEST_CASE("100 parameters with equal plans are one collective per step") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  run_ranks(4, [&](Rank& rank) {
    check(move_list(rank, mesh, 100, "-, -", "dp, -") == 0, "slices do not communicate");
    check(move_list(rank, mesh, 100, "dp, -", "-, -") == 1, "all-gather");
    check(move_list(rank, mesh, 100, "dp, -", "-, dp") == 1, "all-to-all");
    check(move_list(rank, mesh, 100, "tp, dp", "dp, tp") == 1, "permute");
    check(move_list(rank, mesh, 100, "-, - | sum(dp)", "dp, -") == 1, "reduce-scatter");
    check(move_list(rank, mesh, 100, "-, tp | sum(dp)", "dp, tp") == 1, "reduce-scatter beside a shard");
    check(move_list(rank, mesh, 100, "dp, - | max(tp)", "dp, -") == 1, "all-reduce");
  });
}

TEST_CASE("a list of unlike tensors moves too, and must have a layout for each") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(3, [&](Rank&) {
    const std::vector<Tensor> list = {distribute(iota<float>({4, 2}), DistSpec::parse(mesh, "p, -")),
                                      distribute(iota<int64_t>({5}), DistSpec::parse(mesh, "p")),
                                      distribute(iota<float>({3}), DistSpec::parse(mesh, "-"))};
    const auto moved =
        reshard(list, {DistSpec::parse(mesh, "-, p"), DistSpec::parse(mesh, "-"), DistSpec::parse(mesh, "-")});
    check(full_equals(moved[0], list[0].is_dist() ? iota<float>({4, 2}).to_vector<float>() : std::vector<float>()),
          "floats");
    check(full_equals(moved[1], iota<int64_t>({5}).to_vector<int64_t>()), "integers");
    check(moved[2].impl() == list[2].impl(), "nothing to do: the same tensor");
    check_contains(error_of([&] { reshard(list, {}); }, ErrorCode::invalid_argument),
                   "[reshard] argument 'specs' has 0 layouts for 3 tensors");
  });
}

TEST_CASE("an asynchronous move is waited for when its result is read") {
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const Tensor value = iota<float>({64, 64});
    const Tensor start = distribute(value, DistSpec::parse(mesh, "p, -"));
    const Tensor columns = reshard_async(start, DistSpec::parse(mesh, "-, p"));
    const Tensor whole = reshard_async(start, DistSpec::parse(mesh, "-, -"));
    check(full_equals(whole, value.to_vector<float>()), "gathered");
    check(full_equals(columns, value.to_vector<float>()), "moved");
    const Tensor chained =
        reshard_async(reshard_async(start, DistSpec::parse(mesh, "-, p")), DistSpec::parse(mesh, "p, -"));
    check(full_equals(chained, value.to_vector<float>()), "a chain of moves");
  });
}

TEST_CASE("11: a list may be reduced asynchronously, and each result waits for the collective that they share") {
  const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"p"});
  run_ranks(3, [&](Rank& rank) {
    const DistSpec *pending = DistSpec::parse(mesh, "- | sum(p)"), *whole = DistSpec::parse(mesh, "-"),
                   *rows = DistSpec::parse(mesh, "p");
    for (const DistSpec* to : {whole, rows}) {
      std::vector<Tensor> contributions;
      for (const int64_t size : {4, 0, 7})
        contributions.push_back(
            from_local(iota<float>({size}, static_cast<float>(rank.id())), pending, {size}, DType::float32));
      const auto before = rank.stats().collectives;
      std::vector<Tensor> sums = reshard_async(contributions, {to, to, to});
      check(rank.stats().collectives == before + 1, "one collective");
      contributions.clear();
      const Tensor first = sums[0];
      sums.erase(sums.begin());  // one is freed before anything is read
      check(full_equals<float>(sums[1], {3, 6, 9, 12, 15, 18, 21}), "the last");
      check(full_equals<float>(first, {3, 6, 9, 12}), "the first");
      for (const int64_t size : {5, 6})
        contributions.push_back(from_local(iota<float>({size}), pending, {size}, DType::float32));
      reshard_async(contributions, {to, to});  // nothing reads these
    }
  });
}

}  // namespace batch_test
