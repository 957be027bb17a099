// In-place ops and writes: statements 2 to 5, 24 and 25 of docs/semantics.md.
#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace inplace_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(const char* text) { return DistSpec::parse(line(2), text); }

/// A partial tensor whose value is the sum of the ranks' shards.
Tensor partial_sum(Rank& rank, std::vector<float> first, std::vector<float> second) {
  const auto count = static_cast<int64_t>(first.size());
  const Tensor shard = rank.id() < 2 ? Tensor::from_data(rank.id() == 0 ? first : second, {count}) : Tensor();
  return from_local(shard, spec("- | sum(p)"), {count}, DType::float32);
}

}  // namespace

TEST_CASE("24: an in-place op writes the tensor's own buffer, and every alias sees it") {
  Tensor x = iota<float>({4}, -2.0f);
  const Tensor handle = x;
  const Tensor view = reshape(x, {2, 2});
  Tensor& same = relu_(x);
  CHECK(&same == &x);
  CHECK(handle.to_vector<float>() == std::vector<float>{0, 0, 0, 1});
  CHECK(view.to_vector<float>() == std::vector<float>{0, 0, 0, 1});
  CHECK(x.version() == 1);
}

TEST_CASE("24: an in-place op on a partial tensor reduces first and ends in the partial layout") {
  run_ranks(3, [](Rank& rank) {
    Tensor x = partial_sum(rank, {1, -5, 2}, {-3, 4, 5});
    const Tensor alias = reshape(x, {3, 1});
    relu_(x);  // of {-2, -1, 7}
    check(spec_of(x)->text() == "[-] sum(p)", "the layout stays");
    check(full_equals<float>(x, {0, 0, 7}), "relu of the sum, not the sum of relus");
    check(full_equals<float>(alias, {0, 0, 7}), "aliases see it");
    check(x.version() == 1, "one write");
  });
}

TEST_CASE("24: in-place on mismatched layouts moves the other argument") {
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({5, 3}), spec("p, -"));
    const Tensor y = distribute(iota<float>({5, 3}), spec("-, p"));
    const Tensor alias = reshape(x, {5, 3, 1});
    add_(x, y);
    std::vector<float> expected;
    for (int i = 0; i < 15; ++i) expected.push_back(static_cast<float>(2 * i));
    check(spec_of(x)->text() == "[p, -]", "the target stays where it is");
    check(full_equals(x, expected) && full_equals(alias, expected), "value");
  });
}

TEST_CASE("24: adding a partial tensor into a sharded one reduces it first") {
  run_ranks(2, [](Rank& rank) {
    Tensor x = distribute(Tensor::from_data<float>({1, 2, 3}, {3}), spec("p"));
    add_(x, partial_sum(rank, {10, 20, 30}, {1, 2, 3}));
    check(full_equals<float>(x, {12, 24, 36}), "value");
  });
}

TEST_CASE("24: a result of another shape or dtype takes a new buffer, and other aliases become detached") {
  Tensor x = iota<float>({2, 3}, 1.0f);
  Tensor alias = reshape(x, {6});
  transpose_(x, {1, 0});
  CHECK(x.dims() == Dims{3, 2});
  CHECK(x.to_vector<float>() == std::vector<float>{1, 4, 2, 5, 3, 6});
  CHECK(alias.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(x.version() == 1);
  CHECK_THAT(error_of([&] { relu_(alias); }, ErrorCode::view_of_copy), Catch::Contains("transpose_"));
  relu_(x);
  CHECK_THAT(error_of([&] { add(alias, alias); }, ErrorCode::stale_view), Catch::Contains("relu_"));

  Tensor square = iota<float>({2, 2});
  const Tensor square_alias = reshape(square, {4});
  transpose_(square, {1, 0});
  CHECK(square_alias.to_vector<float>() == std::vector<float>{0, 2, 1, 3});
}

TEST_CASE("24: transpose_, cast_ and equal_ on sharded tensors") {
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({5, 2}), spec("p, -"));
    const Tensor alias = reshape(x, {5, 2, 1});
    transpose_(x, {1, 0});
    check(spec_of(x)->text() == "[-, p]" && x.dims() == Dims{2, 5}, spec_of(x)->text());
    check(full_equals<float>(x, {0, 2, 4, 6, 8, 1, 3, 5, 7, 9}), "transposed");
    check(x.version() == 1, "one write");
    check(full_equals(alias, iota<float>({10}).to_vector<float>()), "the old alias keeps the old value");
    relu_(x);
    error_of([&] { full_tensor(alias); }, ErrorCode::stale_view);

    cast_(x, DType::int64);
    check(x.dtype() == DType::int64 && full_equals<int64_t>(x, {0, 2, 4, 6, 8, 1, 3, 5, 7, 9}), "cast");
    Tensor y = distribute(iota<float>({4}), spec("p"));
    equal_(y, distribute(Tensor::from_data<float>({0, 5, 2, 5}, {4}), spec("-")));
    check(y.dtype() == DType::boolean && full_equals<bool>(y, {true, false, true, false}), "equal_");
  });
}

TEST_CASE("24: reshape_ of an exact layout changes metadata alone") {
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({4, 6}), spec("p, -"));
    Tensor alias = reshape(x, {24});
    reshape_(x, {2, 12});
    check(x.dims() == Dims{2, 12} && x.shares_buffer_with(alias) && x.version() == 0, "no write, still shared");
    relu_(alias);
    check(x.version() == 1, "aliases see each other's writes");
  });
}

TEST_CASE("24: reshape_ that has to move elements gives the handle a new buffer and detaches the aliases") {
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({5, 4}), spec("p, -"));
    Tensor alias = reshape(x, {5, 2, 2});
    reshape_(x, {20});
    check(full_equals(x, iota<float>({20}).to_vector<float>()), "value");
    check(spec_of(x)->text() == "[p]" && !x.shares_buffer_with(alias), "new buffer");
    error_of([&] { relu_(alias); }, ErrorCode::view_of_copy);
    relu_(x);
    error_of([&] { full_tensor(alias); }, ErrorCode::stale_view);
  });
}

TEST_CASE("24: an in-place result that would grow by broadcasting is an error and changes nothing") {
  Tensor x = iota<float>({1, 3});
  CHECK_THAT(error_of(
                 [&] {
                   add_(x, iota<float>({2, 3}));
                 },
                 ErrorCode::shape_mismatch),
             Catch::Contains("[add_]") && Catch::Contains("use add instead"));
  CHECK(x.version() == 0);
  run_ranks(3, [](Rank&) {
    Tensor d = distribute(iota<float>({1, 3}), spec("-, p"));
    error_of([&] { add_(d, distribute(iota<float>({2, 3}), spec("-, p"))); }, ErrorCode::shape_mismatch);
    check(d.version() == 0 && full_equals<float>(d, {0, 1, 2}), "unchanged");
  });
}

TEST_CASE("5: a reader that is exactly the target is fine, one that overlaps it otherwise is copied first") {
  Tensor x = iota<float>({4});
  add_(x, x);
  CHECK(x.to_vector<float>() == std::vector<float>{0, 2, 4, 6});

  // y is the first half of x's buffer, broadcast over both rows of x.
  Tensor base = Tensor::from_data<float>({1, 2, 3, 4}, {2, 2});
  const DenseTensor& whole = base.get().value;
  const Tensor row(DenseTensor(whole.storage(), {{2}, DType::float32}));
  add_(base, row);
  CHECK(base.to_vector<float>() == std::vector<float>{2, 4, 4, 6});

  Tensor shifted = Tensor::from_data<float>({1, 2, 3, 4}, {4});
  const Ref<Storage> buffer = shifted.get().value.storage();
  Tensor low(DenseTensor(buffer, {{3}, DType::float32}, 4));
  const Tensor high(DenseTensor(buffer, {{3}, DType::float32}, 0));
  add_(low, high);
  CHECK(shifted.to_vector<float>() == std::vector<float>{1, 3, 5, 7});
  run_ranks(2, [](Rank&) {
    Tensor d = distribute(iota<float>({5}), spec("p"));
    add_(d, d);
    check(full_equals<float>(d, {0, 2, 4, 6, 8}), "distributed");
  });
}

TEST_CASE("4: a call that fails its checks changes no argument, no version and no random offset") {
  run_ranks(2, [](Rank& rank) {
    Tensor x = distribute(iota<float>({4}), spec("p"));
    const RandomKey before = rank.generator.state();
    error_of([&] { add_(x, distribute(iota<float>({3}), spec("p"))); }, ErrorCode::shape_mismatch);
    error_of([&] { add_(x, distribute(iota<double>({4}), spec("p"))); }, ErrorCode::dtype_mismatch);
    error_of([&] { dropout(x, Tensor(), Scalar(2.0)); }, ErrorCode::invalid_argument);
    check(x.version() == 0 && full_equals<float>(x, {0, 1, 2, 3}), "unchanged");
    check(rank.generator.state().offset == before.offset, "offset");
  });
}

TEST_CASE("3: versions are bumped once per written tensor and call, also on ranks outside the mesh") {
  run_ranks(4, [](Rank&) {
    Tensor param = distribute(iota<float>({6}), spec("p"));
    const Tensor grad = distribute(iota<float>({6}), spec("-"));
    const Tensor rate = distribute(Tensor::from_data<float>({0.5f}, {1}), spec("-"));
    Tensor none;
    for (uint64_t step = 1; step <= 3; ++step) {
      sgd_(param, rate, grad, none);
      check(param.version() == step && grad.version() == 0, "version");
    }
    check(full_equals<float>(param, {0, -0.5f, -1, -1.5f, -2, -2.5f}), "value");
  });
}

TEST_CASE("24: InplacePolicy::error refuses to move the target, adopt takes the result's layout") {
  run_ranks(3, [](Rank& rank) {
    Tensor x = partial_sum(rank, {1, -5}, {-3, 4});
    {
      const PolicyScope scope(rank, {.inplace = InplacePolicy::error});
      check_contains(error_of([&] { relu_(x); }, ErrorCode::policy), "InplacePolicy::error");
      check(x.version() == 0, "nothing ran");
    }
    const PolicyScope scope(rank, {.inplace = InplacePolicy::adopt});
    Tensor alias = reshape(x, {2, 1});
    relu_(x);
    check(spec_of(x)->text() == "[-]", spec_of(x)->text());
    check(full_equals<float>(x, {0, 0}), "value");
    check(!x.shares_buffer_with(alias) && full_equals<float>(alias, {-2, -1}),
          "25: adopt makes a new buffer and detaches others");
  });
}

TEST_CASE("25: reduction and reshard always make a new buffer") {
  run_ranks(2, [](Rank& rank) {
    const Tensor x = partial_sum(rank, {1, 2}, {3, 4});
    const Tensor reduced = reshard(x, spec("-"));
    check(!reduced.shares_buffer_with(x) && spec_of(x)->text() == "[-] sum(p)", "x is untouched");
    check(full_equals<float>(x, {4, 6}), "and still the same value");
    check(!reshard(reduced, spec("p")).shares_buffer_with(reduced), "slice");
  });
}

TEST_CASE("17: ranks outside the mesh infer metas, layouts and versions and hold absent storage") {
  run_ranks(4, [](Rank& rank) {
    Tensor x = distribute(iota<float>({5, 3}), spec("p, -"));
    const Tensor y = add(x, x);
    check(y.dims() == Dims{5, 3} && spec_of(y)->text() == "[p, -]", "meta");
    relu_(x);
    check(x.version() == 1, "version");
    check((x.get().value.storage()->state() == Storage::State::absent) == (rank.id() >= 2), "storage state");
    if (rank.id() >= 2) error_of([&] { local(x); }, ErrorCode::wrong_rank);
    check(full_tensor(x).defined() == (rank.id() < 2), "full is for the mesh");
  });
}

TEST_CASE("24: a result is not written back where it would be lost") {
  run_ranks(2, [](Rank& rank) {
    const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
    const auto refused = [&](Tensor x, const char* part) {
      const std::string text = error_of([&] { add_(x, x); }, ErrorCode::layout);
      check_contains(text, "[add_] the result cannot be written back into argument 'x'");
      check_contains(text, part);
    };
    const int64_t sent = rank.stats().bytes_sent;
    refused(from_local(iota<float>({3}), DistSpec::parse(mesh, "- | any(p)"), {3}, DType::float32), "any(p)");
    refused(from_local(iota<int64_t>({3}), DistSpec::parse(mesh, "- | avg(p)"), {3}, DType::int64), "avg(p)");
    check(rank.stats().bytes_sent == sent, "before anything is sent");
    // A reduction stays pending through ops that only move elements.
    Tensor x = from_local(iota<float>({3}), DistSpec::parse(mesh, "- | any(p)"), {3}, DType::float32);
    check(full_equals<float>(assign_(x), {0, 1, 1}), "assign_");
  });
}

TEST_CASE("24: an alias of a buffer that is replaced again and again keeps one buffer alive") {
  World::dry(2, 0)->run([](Rank& rank) {
    for (const bool plain : {true, false}) {
      const int64_t before = rank.dry->live;
      {
        Tensor x = zeros({256, 512});
        if (!plain) x = distribute(x, spec("p, -"));
        const int64_t bytes = rank.dry->live - before;
        const Tensor alias = x.detach();
        Tensor last_but_one;
        for (int i = 0; i < 100; ++i) {
          last_but_one = x.detach();
          transpose_(x, {1, 0});
          check(rank.dry->live - before <= 3 * bytes, fmt::format("round {}: {} bytes", i, rank.dry->live - before));
        }
        last_but_one = {};
        check(rank.dry->live - before == 2 * bytes, "the buffers of x and its first alias");
        relu_(x);
        error_of([&] { relu(alias); }, ErrorCode::stale_view);
        x = {};
        check(rank.dry->live - before == bytes, "that of the alias");
        error_of([&] { relu(alias); }, ErrorCode::stale_view);
      }
      check(rank.dry->live == before, "none");
    }
  });
}

TEST_CASE("24: after 150,000 replaced buffers an alias has its old value, and the chain is freed without a deep stack",
          "[slow_in_asan][slow_in_tsan]") {
  Tensor x = iota<float>({2, 3});
  const Tensor alias = x.detach();
  for (int i = 0; i < 150'001; ++i) transpose_(x, {1, 0});
  CHECK(alias.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(x.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  CHECK(x.version() == 150'001);
}

TEST_CASE("11, 24: axes of one process never move or refuse a target") {
  const auto* mesh = ProcessMesh::make({1, 2});
  run_ranks(3, [&](Rank& rank) {
    const PolicyScope scope(rank, {.inplace = InplacePolicy::error, .comm = CommPolicy::forbid_reshards});
    const Tensor shard = rank.id() < 2 ? Tensor::from_data<float>({-1, 2}, {2}) : Tensor();
    for (const char* type : {"sum", "avg", "max", "min", "prod"}) {
      Tensor x = from_local(shard.defined() ? assign(shard) : shard,
                            DistSpec::parse(mesh, fmt::format("- | {}(a)", type)), {2}, DType::float32);
      const Tensor alias = reshape(x, {1, 2});
      relu_(x);
      check(spec_of(x)->text() == fmt::format("[-] {}(a)", type), "the layout stays");
      check(x.shares_buffer_with(alias) && alias.version() == 1, "written in its own buffer");
      check(full_equals<float>(alias, {0, 2}), type);
    }
    Tensor y = distribute(Tensor::from_data<float>({0, 0, 0, 0}, {2, 2}), DistSpec::parse(mesh, "a, b"));
    softmax_(y, 0);  // it requires dim 0 not to be sharded, and it is not
    check(spec_of(y)->text() == "[a, b]" && full_equals<float>(y, {0.5f, 0.5f, 0.5f, 0.5f}), "softmax_");
    Tensor flags = from_local(rank.id() < 2 ? Tensor::from_data<bool>({true, false}, {2}) : Tensor(),
                              DistSpec::parse(mesh, "- | any(a)"), {2}, DType::boolean);
    logical_not_(flags);
    check(spec_of(flags)->text() == "[-] any(a)" && full_equals<bool>(flags, {false, true}), "any of bools");
    const Tensor ones = full({2}, 1, DistSpec::parse(mesh, "- | avg(a)"), DType::int32);
    check(full_equals<int32_t>(ones, {1, 1}), "an average of integers over one rank is exact");
    check(rank.stats().bytes_sent == 0 || rank.id() < 2, "outside the mesh nothing is sent");
  });
}

}  // namespace inplace_test
