// Statements of docs/semantics.md about values, layouts and reductions: 1, 2, 6, 9, 10, 13, 16 and 18. Pending
// reductions (pending_test.cc), views, in-place writes and policies have files of their own.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "shard/call/dist_call.h"
#include "shard/kernels/registry.h"
#include "shard/ops/math_dense.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/same_values.h"

namespace statements_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }
const DistSpec* spec(int n, const char* text) { return DistSpec::parse(line(n), text); }

/// Runs `program` on `ranks` ranks and returns what each gave.
template <class F>
auto gather_from(int ranks, const F& program) {
  std::vector<std::invoke_result_t<F, Rank&>> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Rank& rank) { results[static_cast<size_t>(rank.id())] = program(rank); });
  return results;
}

}  // namespace

TEST_CASE("1: copies of a handle are one tensor, and a default handle is undefined") {
  const Tensor none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.is_dist());
  CHECK(to_text(none) == "undefined tensor");
  error_of([&] { (void)none.meta(); }, ErrorCode::undefined);
  Tensor x = iota<float>({2}, -1.0f);
  const Tensor same = x;
  relu_(x);
  CHECK(same.to_vector<float>() == std::vector<float>{0, 0});
  CHECK(same.impl() == x.impl());
  CHECK(x.kind() == TensorKind::dense);
}

TEST_CASE("1: a distributed tensor shows its global meta and holds its shard") {
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({5, 2}), spec(2, "p, -"));
    check(x.kind() == TensorKind::dist && x.dims() == Dims{5, 2} && x.numel() == 10, "global meta");
    if (rank.id() < 2) check(local(x).dims() == Dims{rank.id() == 0 ? 3 : 2, 2}, "shard");
    check(x.get().describe() == "f32[5, 2], layout [p, -] on mesh(p=2)", x.get().describe());
  });
}

TEST_CASE("2: an empty shard is held, and only ranks outside the mesh have absent storage") {
  run_ranks(5, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({2, 3}), spec(4, "p, -"));
    const Storage& storage = *x.get().value.storage();
    check(storage.state() == (rank.id() < 4 ? Storage::State::held : Storage::State::absent), "state");
    check(storage.bytes() == (rank.id() < 2 ? 12u : 0u), "bytes");
    Tensor y = add(x, x);
    check(y.get().value.storage()->state() == storage.state(), "results too");
    relu_(y);
    check(y.version() == 1, "the version counts everywhere");
  });
}

TEST_CASE("6: values come in and go out as they are, and wrong counts and dtypes are errors") {
  const Tensor x = Tensor::from_data<int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(x.dims() == Dims{2, 3});
  CHECK(x.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(Tensor::from_data<bool>({true, false}, {2}).to_vector<bool>() == std::vector<bool>{true, false});
  CHECK(Tensor::from_data<float>({}, {0, 3}).to_vector<float>().empty());
  CHECK_THAT(error_of(
                 [] {
                   Tensor::from_data<float>({1, 2}, {3});
                 },
                 ErrorCode::shape_mismatch),
             Catch::Contains("2 values do not fill"));
  CHECK_THAT(error_of(
                 [] {
                   Tensor::from_data<float>({1, 2}, {-1, -2});
                 },
                 ErrorCode::invalid_argument),
             Catch::Contains("must not be negative"));
  CHECK_THAT(error_of([&] { x.to_vector<float>(); }, ErrorCode::dtype_mismatch),
             Catch::Contains("cannot be read as float32"));
}

TEST_CASE("6: distribute takes equal values of all ranks without communication, or sends those of one") {
  run_ranks(4, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({5}), spec(3, "p"), same_on_all);
    check(rank.stats().collectives == 0, "same_on_all is local");
    check(full_equals<float>(x, {0, 1, 2, 3, 4}), "value");
    const auto before = rank.stats().collectives;
    const Tensor y = distribute(iota<float>({5}, static_cast<float>(rank.id())), spec(3, "p"), from_rank(1));
    check(rank.stats().collectives == before + (rank.id() < 3 ? 1u : 0u), "from_rank is one broadcast in the mesh");
    check(full_equals<float>(y, {1, 2, 3, 4, 5}), "value of rank 1");
    check_contains(error_of([] { distribute(iota<float>({5}), spec(3, "p"), from_rank(3)); }, ErrorCode::layout),
                   "not in mesh(p=3)");
    check_contains(error_of([&] { distribute(x, spec(3, "p")); }, ErrorCode::layout), "use reshard");
    check_contains(error_of([] { distribute(iota<float>({5}), spec(3, "p, -")); }, ErrorCode::layout), "has 2 dims");
  });
}

TEST_CASE("6: distribute copies, from_local and local share") {
  run_ranks(2, [](Rank&) {
    const Tensor value = iota<float>({4}, -2.0f);
    Tensor x = distribute(value, spec(2, "-"));
    relu_(x);
    check(value.to_vector<float>()[0] == -2.0f, "distribute copied");
    const Tensor shard = iota<float>({2}, -1.0f);
    Tensor y = from_local(shard, spec(2, "p"), {4}, DType::float32);
    check(y.shares_buffer_with(shard) && local(y).shares_buffer_with(shard), "no copy");
    relu_(y);
    check(shard.to_vector<float>() == std::vector<float>{0, 0} && shard.version() == 1, "writes are seen");
  });
}

TEST_CASE("6: from_local checks the shard and is undefined outside the mesh") {
  run_ranks(3, [](Rank& rank) {
    const bool inside = rank.id() < 2;
    const Tensor shard = inside ? iota<float>({rank.id() == 0 ? 3 : 2}) : Tensor();
    const Tensor x = from_local(shard, spec(2, "p"), {5}, DType::float32);
    check(full_equals<float>(x, {0, 1, 2, 0, 1}), "value");
    if (!inside) return;
    error_of([&] { from_local(shard, spec(2, "p"), {7}, DType::float32); }, ErrorCode::shape_mismatch);
    error_of([&] { from_local(shard, spec(2, "p"), {5}, DType::float64); }, ErrorCode::shape_mismatch);
    error_of([&] { from_local(shard, spec(2, "p"), {5, 1}, DType::float32); }, ErrorCode::layout);
    error_of([&] { from_local(x, spec(2, "p"), {5}, DType::float32); }, ErrorCode::layout);
    error_of([&] { from_local(Tensor(), spec(2, "p"), {5}, DType::float32); }, ErrorCode::undefined);
  });
}

TEST_CASE("6: full is whole on every rank of the mesh, a copy, and undefined outside") {
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({5}), spec(2, "-"));
    const Tensor whole = full_tensor(x);
    check(whole.defined() == (rank.id() < 2), "defined in the mesh");
    if (rank.id() < 2) check(!whole.is_dist() && !whole.shares_buffer_with(x), "plain and a copy");
    if (rank.id() == 2) error_of([&] { local(x); }, ErrorCode::wrong_rank);
    check_contains(error_of([&] { x.to_vector<float>(); }, ErrorCode::layout), "full_tensor(tensor) or local(tensor)");
  });
}

TEST_CASE("6: printing never communicates, and a pending reduction is not shown as the value") {
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({3}), spec(2, "p"));
    const Tensor shard = rank.id() < 2 ? iota<float>({2}, static_cast<float>(rank.id())) : Tensor();
    const Tensor pending = from_local(shard, spec(2, "- | sum(p)"), {2}, DType::float32);
    const auto before = rank.stats().collectives;
    const std::vector<std::string> shards = {"f32[3], layout [p] on mesh(p=2), local shard [2] {0, 1}",
                                             "f32[3], layout [p] on mesh(p=2), local shard [1] {2}",
                                             "f32[3], layout [p] on mesh(p=2), no local shard on this rank"};
    check(to_text(x) == shards[static_cast<size_t>(rank.id())], to_text(x));
    if (rank.id() == 1)
      check(to_text(pending) == "f32[2], layout [-] sum(p) on mesh(p=2), local contribution, not the value [2] {1, 2}",
            to_text(pending));
    check(rank.stats().collectives == before, "nothing was sent");
  });
  CHECK(to_text(iota<int32_t>({2})) == "i32[2] {0, 1}");
  CHECK_THAT(to_text(iota<int32_t>({100})), Catch::Contains("63, ...}"));
}

TEST_CASE("9: a reduction over empty shards yields the identity there and the right value in all") {
  for (int64_t size : {1, 2, 3}) {
    const Tensor plain = iota<float>({size, 2}, -7.0f);
    const Tensor counts = cast(plain, DType::int64);
    run_ranks(4, [&](Rank&) {
      for (const Tensor& value : {plain, counts}) {
        const Tensor x = distribute(value, spec(4, "p, -"));
        for (const bool keep : {false, true}) {
          check(same_values(full_tensor(sum(x, {0}, keep)), sum(value, {0}, keep)), "sum");
          check(same_values(full_tensor(max(x, {0}, keep)), max(value, {0}, keep)), "max");
          check(same_values(full_tensor(min(x, {}, keep)), min(value, {}, keep)), "min");
          check(same_values(full_tensor(prod(x, {0}, keep)), prod(value, {0}, keep)), "prod");
        }
        check(same_values(full_tensor(argmax(x, 0)), argmax(value, 0)), "argmax");
      }
    });
  }
}

TEST_CASE("9: the identity of an empty shard is below infinities too") {
  const float inf = std::numeric_limits<float>::infinity();
  run_ranks(4, [&](Rank&) {
    const Tensor low = distribute(Tensor::from_data<float>({-inf}, {1}), spec(4, "p"));
    const Tensor high = distribute(Tensor::from_data<float>({inf}, {1}), spec(4, "p"));
    check(full_equals<float>(max(low, {0}), {-inf}), "max of -inf");
    check(full_equals<float>(min(high, {0}), {inf}), "min of inf");
  });
}

TEST_CASE("9: NaN wins in max and min whichever rank has it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& values : {std::vector<float>{nan, 1, 2}, {1, nan, 2}, {1, 2, nan}}) {
    run_ranks(4, [&](Rank&) {
      const Tensor x = distribute(Tensor::from_data(values, {3}), spec(4, "p"));
      check(std::isnan(full_tensor(max(x)).to_vector<float>()[0]), "max");
      check(std::isnan(full_tensor(min(x)).to_vector<float>()[0]), "min");
    });
  }
}

TEST_CASE("9: user errors come from the global meta, on ranks outside the mesh as well") {
  const Tensor empty = iota<float>({0, 3});
  error_of([&] { max(empty, {0}); }, ErrorCode::invalid_argument);
  run_ranks(3, [&](Rank& rank) {
    const Tensor x = distribute(empty, spec(2, "p, -"));
    check_contains(error_of([&] { max(x, {0}); }, ErrorCode::invalid_argument), "[max] x is f32[0, 3]");
    error_of([&] { min(x); }, ErrorCode::invalid_argument);
    error_of([&] { argmax(x, 0); }, ErrorCode::invalid_argument);
    check(full_equals<float>(sum(x, {0}), {0, 0, 0}), "sum of nothing");
    check(max(x, {1}).dims() == Dims{0}, "nothing to reduce is fine");
    const Tensor none = full_tensor(mean(x, {0}));
    if (rank.id() < 2) check(std::isnan(none.to_vector<float>()[0]), "mean of nothing");
  });
}

TEST_CASE("10: expand turns its global shape into local ones, for uneven and empty shards") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
  run_ranks(6, [&](Rank&) {
    for (int64_t size : {1, 2, 5, 7}) {
      const Tensor plain = iota<float>({size, 1, 4});
      for (const char* layout : {"a, -, -", "a+b, -, -", "b, -, a", "-, -, b+a", "a, b, -", "-, a, -"}) {
        const Tensor x = distribute(plain, DistSpec::parse(mesh, layout));
        for (const IntArray& shape : {IntArray{3, size, 5, 4}, IntArray{-1, 2, -1}, IntArray{2, -1, 1, 4}}) {
          check(same_values(full_tensor(expand(x, shape)), expand(plain, shape)),
                std::string(layout) + " to " + to_string(shape));
        }
      }
    }
    const Tensor row = distribute(iota<float>({5, 1}), DistSpec::parse(mesh, "b, a"));
    const Tensor wide = expand(row, {5, 3});
    check(spec_of(wide)->text() == "[b, -]", "a dim that grows is whole: " + spec_of(wide)->text());
    error_of([&] { expand(row, {4, 3}); }, ErrorCode::shape_mismatch);
  });
}

TEST_CASE("13: arange computes its shard from its box") {
  const auto* mesh = ProcessMesh::make({2, 3}, {}, {"a", "b"});
  const Tensor whole = arange(3, 40, 2);
  using Arange = void(const OpContext&, const Scalar&, const Scalar&, DenseTensor&);
  run_ranks(6, [&](Rank& rank) {
    for (const char* layout : {"a", "b", "a+b", "b+a", "-"}) {
      const DistSpec* spec = DistSpec::parse(mesh, layout);
      const ShardBox shard = shard_box(spec->layout(), whole.dims(), *mesh->coordinate(rank.id()));
      const Box boxes[] = {{whole.dims(), shard.begin}};
      const LocalCall local{{}, boxes, nullptr, {}};
      const OpContext ctx{"arange", &local};
      DenseTensor out = DenseTensor::allocate(kCpu, {shard.dims, DType::int64});
      kernel_table("arange").find<Arange>(ctx, kCpu, DType::int64).function(ctx, 3, 2, out);
      check(full_equals(from_local(Tensor(out), spec, whole.dims(), DType::int64), whole.to_vector<int64_t>()), layout);
    }
  });
}

TEST_CASE("13: embedding of a vocabulary in shards gives contributions that add up") {
  const Tensor ids = Tensor::from_data<int64_t>({6, 0, 3, 3, 5, 1}, {2, 3});
  const Tensor weight = iota<float>({7, 2}, 1.0f);
  run_ranks(5, [&](Rank&) {
    const Tensor x = distribute(ids, spec(4, "-, -"));
    const Tensor shards = distribute(weight, spec(4, "p, -"));
    const Tensor out = embedding(x, shards);
    check(spec_of(out)->text() == "[-, -, -] sum(p)", spec_of(out)->text());
    check(full_equals(out, embedding(ids, weight).to_vector<float>()), "value");
    check(full_equals(embedding(x, shards, 3), embedding(ids, weight, 3).to_vector<float>()),
          "padding_idx is a global id");
    check(full_equals(embedding(x, distribute(weight, spec(4, "-, p"))), embedding(ids, weight).to_vector<float>()),
          "columns");
    check(full_equals(embedding(distribute(ids, spec(4, "-, p")), shards), embedding(ids, weight).to_vector<float>()),
          "both sharded");
  });
}

TEST_CASE("13: an id is checked against the whole vocabulary, not the local shard") {
  for (int64_t wrong : {7, -1}) {
    run_ranks(4, [&](Rank&) {
      const Tensor x = distribute(Tensor::from_data<int64_t>({0, wrong}, {2}), spec(4, "-"));
      const Tensor shards = distribute(iota<float>({7, 2}), spec(4, "p, -"));
      check_contains(error_of([&] { embedding(x, shards); }, ErrorCode::out_of_range), "must be from 0 to 6");
    });
  }
}

TEST_CASE("13: the mean over uneven shards is the global mean") {
  const Tensor plain = Tensor::from_data<double>({1, 2, 3, 4, 50, 6, 7}, {7});
  run_ranks(5, [&](Rank&) {
    const Tensor x = distribute(plain, spec(4, "p"));
    const Tensor m = mean(x);
    check(spec_of(m)->text() == "[] sum(p)", spec_of(m)->text());
    const Tensor whole = full_tensor(m);
    if (whole.defined()) check(std::fabs(whole.to_vector<double>()[0] - 73.0 / 7) < 1e-14, "value");
  });
}

TEST_CASE("13: batch_norm in training has the statistics of the whole batch when it is sharded unevenly") {
  const int64_t kRows = 5;
  std::vector<double> values;
  for (int64_t i = 0; i < kRows * 3 * 2; ++i)
    values.push_back(std::sin(static_cast<double>(i)) * 3 + static_cast<double>(i % 3));
  const Tensor plain = Tensor::from_data(values, {kRows, 3, 2});
  const auto ones = [] { return Tensor::from_data<double>({1, 2, 3}, {3}); };
  const auto run = [](const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& scale,
                      const Tensor& bias) {
    return batch_norm(x, mean, variance, scale, bias, false, 0.75f, 1e-5f, "NCHW", false, false);
  };
  const auto [out, mean_out, variance_out, saved_mean, saved_inverse] = run(plain, ones(), ones(), ones(), ones());
  const std::vector<Tensor> expected = {out, mean_out, variance_out, saved_mean, saved_inverse};
  for (int ranks : {2, 3, 4, 7}) {
    run_ranks(ranks + 1, [&](Rank&) {
      const Tensor x = distribute(plain, spec(ranks, "p, -, -"));
      const auto whole = [&] { return distribute(ones(), spec(ranks, "-")); };
      const auto [o, m, v, sm, si] = run(x, whole(), whole(), whole(), whole());
      check(spec_of(o)->text() == "[p, -, -]" && spec_of(sm)->text() == "[-]", "the batch stays sharded");
      const std::vector<Tensor> actual = {o, m, v, sm, si};
      for (size_t i = 0; i < actual.size(); ++i) {
        const Tensor value = full_tensor(actual[i]);
        if (!value.defined()) continue;
        const auto got = value.to_vector<double>();
        const auto want = expected[i].to_vector<double>();
        for (size_t k = 0; k < want.size(); ++k)
          check(std::fabs(got[k] - want[k]) < 1e-12, "output " + std::to_string(i));
      }
    });
  }
}

TEST_CASE("13: the gradient of batch_norm is that of the whole batch when it is sharded unevenly") {
  std::vector<double> values;
  for (int i = 0; i < 5 * 3 * 2; ++i) values.push_back(std::sin(i) * 3 + i % 3);
  const Tensor plain = Tensor::from_data(values, {5, 3, 2}), channels = Tensor::from_data<double>({1, 2, 3}, {3});
  const auto run = [](const Tensor& x, const Tensor& c, bool is_test) {
    return batch_norm_grad(x, c, c, c, c, exp(x), "NCHW", is_test, false, false);
  };
  for (const bool is_test : {false, true}) {
    const auto [x_grad, scale_grad, bias_grad] = run(plain, channels, is_test);
    const std::vector<Tensor> expected = {x_grad, scale_grad, bias_grad};
    for (int ranks : {2, 3, 7}) {
      run_ranks(ranks, [&](Rank&) {
        const auto [x, s, b] =
            run(distribute(plain, spec(ranks, "p, -, -")), distribute(channels, spec(ranks, "-")), is_test);
        // Training needs the sums of all ranks; constant statistics do not, and leave them pending.
        check(spec_of(x)->text() == "[p, -, -]" && spec_of(s)->text() == (is_test ? "[-] sum(p)" : "[-]") &&
                  spec_of(b)->text() == spec_of(s)->text(),
              "layouts");
        const std::vector<Tensor> actual = {x, s, b};
        for (size_t i = 0; i < actual.size(); ++i) {
          const auto got = full_tensor(actual[i]).to_vector<double>(), want = expected[i].to_vector<double>();
          for (size_t k = 0; k < want.size(); ++k)
            check(std::fabs(got[k] - want[k]) < 1e-12 * (1 + std::fabs(want[k])), "gradient " + std::to_string(i));
        }
      });
    }
  }
}

namespace {

const SlotDef kOneInput[] = {{"x"}};
const SlotDef kOneOutput[] = {{"out"}};

OpDef mystery_op(std::string_view rule) {
  OpDef op{};
  op.name = "mystery";
  op.location = "mine.yaml:7";
  op.inputs = kOneInput;
  op.outputs = kOneOutput;
  op.rule = rule;
  return op;
}

/// relu under the name of an op that has no placement rule, or a rule that nobody registered.
Tensor mystery(const Tensor& x, const OpDef& op) {
  call::DistCall call(op, x);
  return call.run(infer::relu, [&] { return dense::relu(call, call.meta(0), call[0]); });
}

}  // namespace

TEST_CASE("16: an op without a placement rule is an error that says where to add one") {
  static const OpDef none = mystery_op("");
  static const OpDef unknown = mystery_op("MysteryInferSpmd");
  run_ranks(3, [](Rank& rank) {
    const Tensor x = distribute(iota<float>({5}, -2.0f), spec(2, "p"));
    const std::string text = error_of([&] { mystery(x, none); }, ErrorCode::no_rule);
    check_contains(text, "[mystery] has no placement rule");
    check_contains(text, "mine.yaml:7");
    check_contains(text, "FallbackPolicy::replicate");
    check_contains(error_of([&] { mystery(x, unknown); }, ErrorCode::no_rule),
                   "no rule named 'MysteryInferSpmd' is registered");
    const auto before = call::plan_cache_stats(rank);
    check(before.fallback_calls == 0 && rank.stats().collectives == 0, "nothing ran");
    const PolicyScope scope(rank, {.fallback = FallbackPolicy::replicate});
    for (int i = 0; i < 2; ++i) {
      const Tensor out = mystery(x, none);
      check(spec_of(out)->text() == "[-]" && full_equals<float>(out, {0, 0, 0, 1, 2}), "replicated");
    }
    const auto after = call::plan_cache_stats(rank);
    // 3|2 elements of 4 bytes go to the other rank.
    check(after.fallback_calls == 2 && after.fallback_bytes == 2 * 20, "counted with its bytes, hits of the cache too");
    relu(x);
    check(call::plan_cache_stats(rank).fallback_calls == 2, "an op with a rule is no fallback");
  });
}

TEST_CASE("16: a missing kernel is an error, on one rank and on many") {
  CHECK_THAT(error_of([] { exp(iota<int64_t>({2})); }, ErrorCode::no_kernel),
             Catch::Contains("[exp]") && Catch::Contains("int64"));
  run_ranks(2, [](Rank&) {
    const Tensor x = distribute(iota<int64_t>({4}), spec(2, "p"));
    check_contains(error_of([&] { exp(x); }, ErrorCode::no_kernel), "no kernel registered for exp on cpu with int64");
    check(full_equals<int64_t>(x, {0, 1, 2, 3}), "x is unharmed");
  });
}

TEST_CASE("18: what is planned and sent is the same on all ranks, uneven shards or not") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const auto plans = gather_from(5, [&](Rank& rank) {
    std::vector<std::string> seen;
    rank.observer = [&](const CallRecord& r) {
      seen.push_back(
          fmt::format("{} | {} | {} | {} | {} | {}", r.op, r.inputs, r.reshards, r.outputs, r.aliases, r.bytes));
    };
    Tensor x = distribute(iota<float>({5, 3}), DistSpec::parse(mesh, "a, b"));
    const Tensor y = distribute(iota<float>({3, 7}), DistSpec::parse(mesh, "-, a+b"));
    add_(x, distribute(iota<float>({1, 3}), DistSpec::parse(mesh, "-, a")));
    softmax(matmul(x, y));
    sum(reshape(x, {15}), {0});
    rank.observer = {};
    return seen;
  });
  REQUIRE(plans[0].size() == 5);
  for (const auto& plan : plans) CHECK(plan == plans[0]);
}

TEST_CASE("18: after a reduction replicas are bit-identical") {
  const auto bits = gather_from(6, [&](Rank& rank) {
    std::vector<float> shard;
    for (int i = 0; i < 257; ++i) shard.push_back(std::sin(static_cast<float>(i * 31 + rank.id() * 17)) * 1e3f);
    const Tensor x = from_local(Tensor::from_data(shard, {257}), spec(6, "- | sum(p)"), {257}, DType::float32);
    const Tensor total = sum(relu(x), {0});
    return std::pair(local(reshard(x, spec(6, "-"))).to_vector<float>(), local(total).to_vector<float>());
  });
  for (const auto& rank : bits) CHECK(rank == bits[0]);
}

}  // namespace statements_test
