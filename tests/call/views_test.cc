// Views: statements 21 to 23 of docs/semantics.md.
#include <catch2/catch.hpp>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace views_test {

using namespace shard;
using namespace shard::test;

namespace {

const ProcessMesh* line(int n) { return ProcessMesh::make({n}, {}, {"p"}); }

struct BatchNorm {
  Tensor x, mean, variance, scale, bias;
  explicit BatchNorm(const char* statistics) {
    const auto* mesh = line(2);
    // Large enough that it is cheaper to reshard the statistics than x. Columns have means 4.5, 5.5, 6.5.
    constexpr int64_t kRows = 65536;
    std::vector<float> rows;
    for (int64_t i = 0; i < 3 * kRows; ++i) rows.push_back(static_cast<float>(i % 12));
    x = distribute(Tensor::from_data(rows, {kRows, 3}), DistSpec::parse(mesh, "p, -"));
    mean = distribute(Tensor::from_data<float>({1, 2, 3}, {3}), DistSpec::parse(mesh, statistics));
    variance = distribute(Tensor::from_data<float>({1, 1, 1}, {3}), DistSpec::parse(mesh, statistics));
    scale = distribute(Tensor::from_data<float>({1, 1, 1}, {3}), DistSpec::parse(mesh, "-"));
    bias = distribute(Tensor::from_data<float>({0, 0, 0}, {3}), DistSpec::parse(mesh, "-"));
  }
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> run() {
    return batch_norm(x, mean, variance, scale, bias, false, 0.5f, 1e-5f, "NCHW", false, false);
  }
};

// The new mean is half of the batch mean plus half of the old one.
const std::vector<float> kNewMean = {2.75f, 3.75f, 4.75f};

}  // namespace

TEST_CASE("21: a view of an unmoved input shares its buffer and version") {
  Tensor x = iota<float>({2, 6});
  Tensor y = reshape(x, {3, 4});
  CHECK(y.shares_buffer_with(x));
  const uint64_t before = x.version();
  relu_(y);
  CHECK(x.version() == before + 1);
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({4, 6}, -10.0f), DistSpec::parse(line(2), "p, -"));
    Tensor y = reshape(x, {4, 2, 3});
    check(y.shares_buffer_with(x), "shares");
    check(spec_of(y)->text() == "[p, -, -]", spec_of(y)->text());
    relu_(y);
    check(x.version() == 1 && y.version() == 1, "one write, on ranks outside the mesh too");
    std::vector<float> expected(24, 0.0f);
    for (size_t i = 11; i < 24; ++i) expected[i] = static_cast<float>(i) - 10;
    check(full_equals(x, expected), "the write through the view reached x");
  });
}

TEST_CASE("21: ops without a view map never alias") {
  Tensor x = iota<float>({2, 2});
  CHECK_FALSE(transpose(x, {0, 1}).shares_buffer_with(x));
  CHECK_FALSE(cast(x, DType::float32).shares_buffer_with(x));
  CHECK_FALSE(slice(x, {0}, {0}, {2}).shares_buffer_with(x));
}

TEST_CASE("22: a view of a resharded input can be read, and a write through it throws before it runs") {
  run_ranks(3, [](Rank&) {
    // [5, 4] by rows is 12|8 elements, [20] is 10|10: the reshape sends elements to other ranks.
    Tensor x = distribute(iota<float>({5, 4}), DistSpec::parse(line(2), "p, -"));
    Tensor y = reshape(x, {20});
    check(!y.shares_buffer_with(x), "detached");
    check(full_equals(y, iota<float>({20}).to_vector<float>()), "same values");
    const std::string text = error_of([&] { relu_(y); }, ErrorCode::view_of_copy);
    check_contains(text, "[relu_]");
    check_contains(text, "view by [reshape] of argument 'x'");
    check_contains(text, "from [p, -] to [p]");
    check(y.version() == 0 && x.version() == 0, "nothing was written");
  });
}

TEST_CASE("22: a write through the source makes the view stale, and its next use names the writer") {
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({5, 4}), DistSpec::parse(line(2), "p, -"));
    Tensor y = reshape(x, {20});
    relu_(x);
    const std::string text = error_of([&] { add(y, y); }, ErrorCode::stale_view);
    check_contains(text, "relu_ has written the source since");
    error_of([&] { full_tensor(y); }, ErrorCode::stale_view);
    check(full_equals(x, iota<float>({20}).to_vector<float>()), "the source itself is fine");
  });
}

TEST_CASE("22: a view of a view of a resharded input is stale with it") {
  run_ranks(2, [](Rank&) {
    Tensor x = distribute(iota<float>({5, 4}), DistSpec::parse(line(2), "p, -"));
    Tensor z = reshape(reshape(x, {20}), {2, 10});
    relu_(x);
    error_of([&] { exp(z); }, ErrorCode::stale_view);
  });
}

TEST_CASE("22: ViewPolicy::sync refreshes stale views and writes through them") {
  run_ranks(3, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::sync});
    Tensor x = distribute(iota<float>({5, 4}, -4.0f), DistSpec::parse(line(2), "p, -"));
    Tensor y = reshape(x, {20});
    relu_(x);
    std::vector<float> expected(20, 0.0f);
    for (size_t i = 5; i < 20; ++i) expected[i] = static_cast<float>(i) - 4;
    check(full_equals(scale(y, 1.0, 0.0), expected), "refreshed");
    const Tensor two = distribute(Tensor::from_data<float>({2}, {}), DistSpec::parse(line(2), ""));
    multiply_(y, two);
    for (float& value : expected) value *= 2;
    check(full_equals(x, expected), "written back");
    check(full_equals(y, expected), "in step");
  });
}

TEST_CASE("22: under ViewPolicy::temporary view and source simply part") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
    Tensor x = distribute(iota<float>({5, 4}, -4.0f), DistSpec::parse(line(2), "p, -"));
    Tensor y = reshape(x, {20});
    relu_(x);
    check(full_equals(y, iota<float>({20}, -4.0f).to_vector<float>()), "the view keeps the old value");
    relu_(y);
  });
}

TEST_CASE("23: batch_norm on unmoved statistics writes them in place") {
  run_ranks(3, [](Rank&) {
    BatchNorm bn("-");
    const auto [out, mean_out, variance_out, saved_mean, saved_variance] = bn.run();
    check(mean_out.shares_buffer_with(bn.mean) && variance_out.shares_buffer_with(bn.variance), "shares");
    check(bn.mean.version() == 1 && bn.variance.version() == 1, "one write each");
    check(full_equals(bn.mean, kNewMean), "new mean");
  });
}

TEST_CASE("23: batch_norm on sharded statistics shares with the replicated temporaries and writes the originals back") {
  run_ranks(3, [](Rank&) {
    BatchNorm bn("p");
    const auto [out, mean_out, variance_out, saved_mean, saved_variance] = bn.run();
    check(!mean_out.shares_buffer_with(bn.mean), "the output shares with the temporary");
    check(spec_of(mean_out)->text() == "[-]" && spec_of(bn.mean)->text() == "[p]", "layouts");
    check(bn.mean.version() == 1, "one write");
    check(full_equals(bn.mean, kNewMean), "written back in x's layout");
    check(full_equals(mean_out, kNewMean), "in step after the write-back");
    relu_(bn.mean);
    error_of([&mean = mean_out] { full_tensor(mean); }, ErrorCode::stale_view);
    BatchNorm again("p");
    auto [out2, mean2, variance2, saved2, inverse2] = again.run();
    error_of([&mean = mean2] { relu_(mean); }, ErrorCode::view_of_copy);
  });
}

TEST_CASE("23: under ViewPolicy::temporary sharded statistics stay as they were") {
  run_ranks(2, [](Rank& rank) {
    const PolicyScope scope(rank, {.view = ViewPolicy::temporary});
    BatchNorm bn("p");
    const auto [out, mean_out, variance_out, saved_mean, saved_variance] = bn.run();
    check(bn.mean.version() == 0 && full_equals<float>(bn.mean, {1, 2, 3}), "unchanged");
    check(full_equals(mean_out, kNewMean), "the output has the new mean");
  });
}

TEST_CASE("10, 11: reshape of sharded dims is exact for every factorisation, divisible or not") {
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const std::vector<Dims> shapes = {{24}, {4, 6}, {6, 4}, {2, 3, 4}, {3, 8}, {1, 24}, {24, 1}, {2, 1, 12}, {4, 3, 2}};
  run_ranks(4, [&](Rank&) {
    for (const Dims& in : shapes) {
      for (const Dims& out : shapes) {
        std::vector<std::string> layouts = {"a", "a+b", "b+a"};
        for (int d = 1; d < in.rank(); ++d) {
          for (std::string& layout : layouts) layout += ", -";
        }
        if (in.rank() > 1) layouts.push_back(in.rank() == 2 ? "a, b" : "b, -, a");
        if (in.rank() > 1) layouts.push_back(in.rank() == 2 ? "-, a" : "-, a, b");
        for (const std::string& layout : layouts) {
          const Tensor x = distribute(iota<int32_t>(in), DistSpec::parse(mesh, layout));
          const Tensor y = reshape(x, IntArray(out));
          check(full_equals(y, iota<int32_t>({24}).to_vector<int32_t>()),
                to_string(in) + " " + layout + " -> " + to_string(out));
        }
      }
    }
  });
}

TEST_CASE("10: -1 and 0 in a shape mean the global dims") {
  run_ranks(2, [](Rank&) {
    const Tensor x = distribute(iota<float>({4, 6}), DistSpec::parse(line(2), "p, -"));
    check(reshape(x, {0, -1, 3}).dims() == Dims{4, 2, 3}, "[0, -1, 3]");
    check(reshape(x, {-1}).dims() == Dims{24}, "[-1]");
    error_of([&] { reshape(x, {5, 5}); }, ErrorCode::shape_mismatch);
    const Tensor empty = distribute(iota<float>({0, 6}), DistSpec::parse(line(2), "p, -"));
    check(reshape(empty, {0, 2, 3}).dims() == Dims{0, 2, 3}, "0-size");
  });
}

TEST_CASE("pending reductions pass through views") {
  run_ranks(2, [](Rank& rank) {
    const Tensor shard = Tensor::from_data<float>({1, 2, 3, 4}, {4});
    const Tensor x = from_local(shard, DistSpec::parse(line(2), "- | sum(p)"), {4}, DType::float32);
    const int64_t before = rank.stats().bytes_sent;
    const Tensor y = reshape(x, {2, 2});
    check(spec_of(y)->text() == "[-, -] sum(p)", spec_of(y)->text());
    check(rank.stats().bytes_sent == before, "no communication");
    check(full_equals<float>(y, {2, 4, 6, 8}), "value");
  });
}

TEST_CASE("11, 21: a view whose shards all stay where they are shares, and writes through it reach the source") {
  const auto* square = ProcessMesh::make({2, 2});
  const auto* flat = ProcessMesh::make({4, 1});
  struct Case {
    const ProcessMesh* mesh;
    Dims in;
    const char* layout;
    Dims out;
  };
  const std::vector<Case> cases = {{square, {2, 4}, "a, b", {8}},
                                   {square, {3, 8}, "-, a+b", {3, 2, 4}},
                                   {flat, {4, 6}, "-, b", {24}},
                                   {square, {1, 8}, "a, -", {2, 4, 1}},
                                   {square, {8, 1, 1}, "-, a, b", {1, 8}},
                                   {square, {1, 2}, "a, b", {2}},
                                   {square, {2, 2, 3}, "a, b, -", {4, 3}},
                                   {square, {2, 4}, "b, a", {4, 2}},
                                   {flat, {1, 5}, "b, a", {5}},
                                   {square, {2, 3}, "a, - | sum(b)", {1, 6}}};
  run_ranks(5, [&](Rank& rank) {
    for (const Case& each : cases) {
      const std::string what = to_string(each.in) + " [" + each.layout + "] to " + to_string(each.out);
      Tensor x = distribute(iota<float>(each.in), DistSpec::parse(each.mesh, each.layout));
      const int64_t sent = rank.stats().bytes_sent;
      Tensor y = reshape(x, IntArray(each.out));
      check(y.shares_buffer_with(x), what);
      scale_(y, 2);
      check(rank.stats().bytes_sent == sent, what + ": nothing is sent");
      check(x.version() == 1, what + ": one write");
      std::vector<float> expected = iota<float>(each.in).to_vector<float>();
      for (float& value : expected) value *= 2;
      check(full_equals(x, expected) && full_equals(y, expected), what + ": values");
    }
  });
}

TEST_CASE("22: to_text of a stale view throws on every rank, in the mesh and outside") {
  run_ranks(3, [](Rank&) {
    Tensor x = distribute(iota<float>({5, 4}), DistSpec::parse(line(2), "p, -"));
    const Tensor y = reshape(x, {20});
    check_contains(to_text(y), "f32[20]");
    relu_(x);
    check_contains(error_of([&] { to_text(y); }, ErrorCode::stale_view), "relu_ has written the source since");
  });
}

}  // namespace views_test
