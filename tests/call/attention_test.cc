// Ops of attention.yaml beside flash_attn: sequences on their own, dropout, keys that are not seen, shards, and errors.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "shard/call/dense_call.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace attention_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> of(const Tensor& x) { return cast(x, DType::float64).to_vector<double>(); }
Tensor i32(const std::vector<int32_t>& values) {
  return Tensor::from_data(values, {static_cast<int64_t>(values.size())});
}
Tensor reals(const Dims& dims, int seed, DType dtype = DType::float32) {
  return cast(uniform(dims, DType::float64, -2, 2, seed), dtype);
}
Tensor rows(const Tensor& x, int64_t begin, int64_t end) { return slice(x, {0}, {begin}, {end}); }

/// Three packed sequences, of which one is empty, and more than a block of keys.
struct Packed {
  explicit Packed(DType dtype = DType::float32)
      : q(reals({90, 4, 8}, 1, dtype)), k(reals({150, 2, 8}, 2, dtype)), v(reals({150, 2, 6}, 3, dtype)) {}
  Tensor q, k, v, of_q = i32({0, 20, 20, 90}), of_k = i32({0, 140, 140, 150}),
                  seed = Tensor::from_data<int64_t>({5, 3}, {2});
  static constexpr float kScale = 0.35355339f;  // 1 / sqrt(8)

  std::tuple<Tensor, Tensor, Tensor, Tensor> attend(float dropout, bool causal, const Tensor& mask = {}) const {
    return flash_attn_unpadded_intermediate(q, k, v, of_q, of_k, seed, mask, 70, 140, kScale, dropout, causal, true);
  }
};

void check_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(got[i] == expected[i] || std::abs(got[i] - expected[i]) <= tolerance))
      FAIL("element " << i << ": " << got[i] << ", expected " << expected[i]);
  }
}

}  // namespace

TEST_CASE("packed sequences attend as flash_attn does on each of them") {
  for (const DType dtype : dtypes_of(FloatTypes{})) {
    const Packed p(dtype);
    for (const bool causal : {false, true}) {
      const auto [out, weights, lse, seed] = p.attend(0, causal);
      CHECK(out.dims() == Dims{90, 4, 6});
      CHECK(weights.dims() == Dims{3, 4, 70, 140});
      CHECK(lse.dims() == Dims{3, 4, 70});
      CHECK(seed.to_vector<int64_t>() == std::vector<int64_t>{0, 0});
      const int64_t ends[3][4] = {{0, 20, 0, 140}, {20, 20, 140, 140}, {20, 90, 140, 150}};
      for (int64_t s = 0; s < 3; ++s) {
        const int64_t from = ends[s][0], to = ends[s][1], first = ends[s][2], last = ends[s][3];
        const auto part = [&](const Tensor& x, bool keys) {
          return unsqueeze(keys ? rows(x, first, last) : rows(x, from, to), {0});
        };
        const auto alone = flash_attn(part(p.q, false), part(p.k, true), part(p.v, true), {}, {}, 0, causal, true);
        const double tolerance = dtype == DType::float64 ? 1e-6 : 1e-5;  // the scales differ by a rounding to float32
        check_near(of(part(out, false)), of(std::get<0>(alone)), size_of(dtype) == 2 ? 0.02 : tolerance);
        const Tensor own = slice(rows(weights, s, s + 1), {2, 3}, {0, 0}, {to - from, last - first});
        check_near(of(own), of(std::get<1>(alone)), size_of(dtype) == 2 ? 0.01 : tolerance);
        check_near(of(slice(rows(lse, s, s + 1), {2}, {0}, {to - from})), of(std::get<2>(alone)), 1e-5);
      }
      CHECK(of(slice(rows(weights, 0, 1), {2}, {20}, {70})) == std::vector<double>(4 * 50 * 140));
      CHECK(of(rows(lse, 1, 2)) == std::vector<double>(4 * 70, -kInfinity));
    }
  }
}

TEST_CASE("a value that weighs nothing has no influence, wherever the key is that takes all weight") {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const size_t infinite : {5u, 200u}) {
      for (const size_t winner : {6u, 199u, 201u}) {
        std::vector<float> keys(256 * 8, 0.0f), all(256 * 8, 1.0f);
        std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(winner * 8), 8, 100.0f);
        std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(infinite * 8), 8, INFINITY);
        const auto tensor = [=](const std::vector<float>& numbers, const Dims& dims) {
          return cast(Tensor::from_data(numbers, dims), dtype);
        };
        const Tensor out = std::get<0>(flash_attn(tensor(std::vector<float>(8, 1.0f), {1, 1, 1, 8}),
                                                  tensor(keys, {1, 256, 1, 8}), tensor(all, {1, 256, 1, 8}), {}, {}));
        CHECK(of(out) == std::vector<double>(8, 1.0));
      }
    }
  }
}

TEST_CASE("dropout of packed sequences is that of one sequence of all rows, whose mask separates them") {
  const Packed p;
  std::vector<float> mask;
  for (int i = 0; i < 90; ++i)
    for (int j = 0; j < 150; ++j) mask.push_back((i < 20) == (j < 140) ? 0 : -INFINITY);
  const auto whole = flash_attn(unsqueeze(p.q, {0}), unsqueeze(p.k, {0}), unsqueeze(p.v, {0}), p.seed,
                                Tensor::from_data(mask, {1, 1, 90, 150}), 0.5f);
  const auto [out, weights, lse, seed] = p.attend(0.5f, false);
  check_near(of(out), of(std::get<0>(whole)), 1e-5);
  CHECK(seed.to_vector<int64_t>() == std::vector<int64_t>{5, 3});
  CHECK(of(weights) == of(std::get<1>(p.attend(0, false))));
  const auto tested = flash_attn_unpadded(p.q, p.k, p.v, p.of_q, p.of_k, p.seed, {}, 70, 140, Packed::kScale, 0.5f,
                                          false, false, /*is_test=*/true);
  CHECK(of(std::get<0>(tested)) == of(std::get<0>(p.attend(0, false))));
}

TEST_CASE("dropout of memory_efficient_attention draws a key, and drops what flash_attn drops by it") {
  const Tensor q = reals({2, 5, 4, 8}, 1), k = reals({2, 7, 4, 8}, 2), v = reals({2, 7, 4, 8}, 3);
  const auto call = [&](double dropout, bool is_test) {
    return memory_efficient_attention(q, k, v, {}, {}, {}, {}, {}, -1, -1, false, dropout, -1, is_test);
  };
  const auto [out, lse, seed] = call(0.5, false);
  CHECK(of(out) == of(std::get<0>(flash_attn(q, k, v, seed, {}, 0.5f))));
  CHECK(of(std::get<2>(call(0.5, false))) != of(seed));
  CHECK(of(std::get<0>(call(0.5, true))) == of(std::get<0>(flash_attn(q, k, v, {}, {}))));
}

TEST_CASE("packed memory_efficient_attention sees the first keys of a sequence, up to a diagonal") {
  const Tensor q = reals({1, 5, 2, 4}, 1, DType::float64), k = reals({1, 7, 2, 4}, 2, DType::float64),
               v = reals({1, 7, 2, 3}, 3, DType::float64);
  const auto [out, lse, seed] = memory_efficient_attention(q, k, v, {}, i32({0, 2, 5}), i32({0, 4, 7}), i32({1, 0}),
                                                           i32({3, 2}), 3, 4, true, 0, -1, false);
  CHECK(lse.dims() == Dims{2, 2, 3});
  const int seen[5][2] = {
      {0, 2}, {0, 3}, {4, 5}, {4, 6}, {4, 6}};  // of each query: the first key and the one after the last
  for (int i = 0; i < 5; ++i) {
    const auto part = [&](const Tensor& x, int64_t begin, int64_t end) { return slice(x, {1}, {begin}, {end}); };
    const auto alone =
        flash_attn(part(q, i, i + 1), part(k, seen[i][0], seen[i][1]), part(v, seen[i][0], seen[i][1]), {}, {});
    check_near(of(part(out, i, i + 1)), of(std::get<0>(alone)), 1e-12);
  }
}

TEST_CASE("flash_attn: a key that no query sees has no effect, even if it is not finite") {
  // The last of three keys is hidden, by a mask from all queries or by causal from those whose results are used.
  const Tensor q = reals({1, 3, 1, 2}, 1, DType::float64), k = reals({1, 3, 1, 2}, 2, DType::float64),
               v = reals({1, 3, 1, 2}, 3, DType::float64);
  const Tensor hide = Tensor::from_data<double>({0, 0, -kInfinity, 0, 0, -kInfinity, 0, 0, -kInfinity}, {1, 1, 3, 3});
  for (const bool causal : {false, true}) {
    const auto run = [&](double bad) {
      const auto with = [&](const Tensor& x, double value) {
        return add(x, Tensor::from_data<double>({0, 0, 0, 0, value, 0}, {1, 3, 1, 2})).detach().set_requires_grad(true);
      };
      const std::vector<Tensor> in = {with(q, 0), with(k, bad), with(v, bad)};
      const Tensor out = std::get<0>(flash_attn(in[0], in[1], in[2], {}, causal ? Tensor() : hide, 0, causal));
      const Tensor used = slice(out, {1}, {0}, {2});
      std::vector<std::vector<double>> all = {of(used)};
      for (const Tensor& each : grad({used}, in, {full_like(used.detach(), 1)}))
        all.push_back(of(slice(each, {1}, {0}, {2})));
      if (causal) all.resize(2);  // query 2 sees all keys, and its own results are not finite
      return all;
    };
    for (const double bad : {kInfinity, -kInfinity, static_cast<double>(NAN)}) {
      INFO("causal " << causal << ", " << bad);
      CHECK(run(bad) == run(0));
    }
  }
}

TEST_CASE("flash_attn: a query that is not finite has no effect on the gradients of keys that it does not see") {
  const Tensor mask = Tensor::from_data<double>({0, -kInfinity, -kInfinity, 0, 0, 0, 0, 0, 0}, {1, 1, 3, 3});
  const auto run = [&](double bad) {
    const Tensor at = Tensor::from_data<double>({bad, 0, 0, 0, 0, 0}, {1, 3, 1, 2});
    const Tensor q = add(reals({1, 3, 1, 2}, 1, DType::float64), at),
                 k = reals({1, 3, 1, 2}, 2, DType::float64).set_requires_grad(true),
                 v = reals({1, 3, 1, 2}, 3, DType::float64).set_requires_grad(true);
    const Tensor out = std::get<0>(flash_attn(q, k, v, {}, mask));
    std::vector<std::vector<double>> all;
    for (const Tensor& each : grad({out}, {k, v}, {full_like(out.detach(), 1)}))
      all.push_back(of(slice(each, {1}, {1}, {3})));
    return all;
  };
  for (const double bad : {kInfinity, -kInfinity, static_cast<double>(NAN)}) CHECK(run(bad) == run(0));
}

TEST_CASE("what a query does not see has no effect on it and on its gradients, even if it is not finite") {
  for (const double bad : {kInfinity, static_cast<double>(NAN)}) {
    // Query 1 of the first sequence does not see key 2; only it is finite in the second one.
    const Tensor clean = reals({4, 1, 2}, 4, DType::float64);
    const Tensor at = Tensor::from_data<double>({0, 0, 0, 0, bad, bad, bad, 0}, {4, 1, 2});
    const Tensor k = add(clean, at), cu = i32({0, 3, 4});
    const auto call = [&](const Tensor& keys) {
      Tensor q = reals({4, 1, 2}, 5, DType::float64), v = keys.detach();
      q.set_requires_grad(true);
      const Tensor out = std::get<0>(flash_attn_unpadded(q, keys, v, cu, cu, {}, {}, 3, 3, 0.5f, 0, /*causal=*/true));
      sum(slice(out, {0}, {0}, {2})).backward();
      return std::vector{of(slice(out, {0}, {0}, {2})), of(slice(q.grad(), {0}, {0}, {2}))};
    };
    CHECK(call(k) == call(clean));
    const auto selected = [&](const Tensor& keys) {
      const Tensor all = unsqueeze(keys, {0});
      return of(
          std::get<0>(memory_efficient_attention(all, all, all, {}, cu, cu, {}, i32({2, 0}), 3, 3, true, 0, -1, true)));
    };
    const std::vector<double> got = selected(k), expected = selected(clean);
    CHECK(std::vector(got.begin(), got.begin() + 4) == std::vector(expected.begin(), expected.begin() + 4));
    CHECK(std::vector(got.begin() + 6, got.end()) == std::vector<double>{0, 0});
  }
}

TEST_CASE("shards of packed sequences and of batches have the bits of the whole, with dropout too") {
  const Packed p;
  const auto expected = of(std::get<0>(p.attend(0.5f, true)));
  const Tensor q = reals({4, 6, 4, 8}, 1), k = reals({4, 9, 4, 8}, 2), bias = reals({4, 1, 6, 9}, 3);
  Generator& generator = call::thread_generator();
  const auto efficient = [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return std::get<0>(memory_efficient_attention(a, b, b, c, {}, {}, {}, {}, 0, 0, true, 0.5, -1, false));
  };
  generator.set_seed(7);
  const auto whole = of(efficient(q, k, bias));
  run_ranks(2,
            [&](Rank& rank) {
              const ProcessMesh* mesh = ProcessMesh::make({2});
              const auto put = [&](const Tensor& x, const char* layout) {
                return distribute(x, DistSpec::parse(mesh, layout));
              };
              for (const char* layout : {"-, a, -", "a, -, -", "-, -, -"}) {
                Packed part;
                for (Tensor* x : {&part.q, &part.k, &part.v}) *x = put(*x, layout);
                for (Tensor* x : {&part.of_q, &part.of_k, &part.seed}) *x = put(*x, "-");
                check(full_equals(cast(std::get<0>(part.attend(0.5f, true)), DType::float64), expected), layout);
              }
              for (const char* layout : {"a, -, -, -", "-, a, -, -", "-, -, a, -"}) {
                rank.generator.set_seed(7);
                check(full_equals(cast(efficient(put(q, layout), put(k, "-, -, -, -"), put(bias, "-, -, -, -")),
                                       DType::float64),
                                  whole),
                      layout);
              }
            },
            {.seed = 7});
}

TEST_CASE("flash_attn_unpadded refuses arguments that do not fit and takes empty ones") {
  const Packed p;
  const auto call = [&](const Tensor& q, const Tensor& k, const Tensor& of_q, const Tensor& of_k, int64_t longest = 70,
                        const Tensor& mask = {}, float dropout = 0) {
    return flash_attn_unpadded(q, k, p.v, of_q, of_k, {}, mask, longest, 140, 1, dropout);
  };
  check_refused([&] { call(unsqueeze(p.q, {0}), p.k, p.of_q, p.of_k); }, ErrorCode::shape_mismatch,
                "three dims [rows, heads, width]");
  check_refused([&] { call(p.q, p.q, p.of_q, p.of_k); }, ErrorCode::shape_mismatch, "one sequence and as many heads");
  check_refused([&] { call(p.q, p.k, cast(p.of_q, DType::int64), p.of_k); }, ErrorCode::dtype_mismatch,
                "i32[sequences + 1]");
  check_refused([&] { call(p.q, p.k, p.of_q, i32({0, 150})); }, ErrorCode::shape_mismatch, "i32[sequences + 1]");
  check_refused(
      [&] {
        call(p.q, p.k, i32({0, 20, 10, 90}), p.of_k);
      },
      ErrorCode::out_of_range, "cu_seqlens_q is 10 at element 2");
  check_refused(
      [&] {
        call(p.q, p.k, i32({0, 20, 30, 80}), p.of_k);
      },
      ErrorCode::out_of_range, "cu_seqlens_q is 80 at element 3");
  check_refused(
      [&] {
        call(p.q, p.k, i32({1, 20, 30, 90}), p.of_k);
      },
      ErrorCode::out_of_range, "cu_seqlens_q is 1 at element 0");
  check_refused(
      [&] {
        call(p.q, p.k, p.of_q, i32({0, 141, 141, 150}));
      },
      ErrorCode::out_of_range, "max_seqlen_k = 140");
  check_refused([&] { call(p.q, p.k, p.of_q, p.of_k, -1); }, ErrorCode::out_of_range, "-1");
  check_refused(
      [&] {
        call(p.q, p.k, p.of_q, p.of_k, 70, zeros({3, 4, 70, 139}));
      },
      ErrorCode::shape_mismatch, "must be [3, 4, 70, 140]");
  check_refused([&] { call(p.q, p.k, p.of_q, p.of_k, 70, {}, 1); }, ErrorCode::invalid_argument, "dropout is 1");
  const Tensor none = zeros({0, 2, 3}), no_sequence = i32({0}), no_length = i32({0, 0});
  for (const Tensor& each : {no_sequence, no_length}) {
    const auto [out, softmax] = flash_attn_unpadded(none, none, none, each, each, {}, {}, 0, 0, 1, 0, true, true);
    CHECK(out.dims() == Dims{0, 2, 3});
    CHECK(softmax.dims() == Dims{each.numel() - 1, 2, 0, 0});
  }
  // Queries without keys.
  const auto [out, softmax] =
      flash_attn_unpadded(zeros({2, 2, 3}), none, none, i32({0, 2}), no_length, {}, {}, 2, 0, 1);
  CHECK(of(out) == std::vector<double>(12));
}

TEST_CASE("memory_efficient_attention refuses arguments that do not fit") {
  const Tensor q = zeros({1, 5, 2, 4}), two = zeros({2, 5, 2, 4}), cu = i32({0, 2, 5});
  const auto call = [](const Tensor& x, const Tensor& bias, const Tensor& of_q, const Tensor& of_k,
                       const Tensor& diagonal = {}, const Tensor& lengths = {}, bool causal = true,
                       double dropout = 0) {
    memory_efficient_attention(x, x, x, bias, of_q, of_k, diagonal, lengths, 3, 3, causal, dropout, -1, false);
  };
  check_refused([&] { call(two, {}, cu, cu); }, ErrorCode::shape_mismatch, "packed in a batch of 1");
  check_refused([&] { call(q, {}, cu, {}); }, ErrorCode::undefined, "only one of cu_seqlens_q and cu_seqlens_k");
  check_refused([&] { call(q, zeros({5, 5}), cu, cu); }, ErrorCode::invalid_argument, "bias");
  check_refused([&] { call(q, zeros({5, 4}), {}, {}); }, ErrorCode::shape_mismatch, "bias is f32[5, 4]");
  check_refused([&] { call(q, zeros({5, 5}, DType::float64), {}, {}); }, ErrorCode::dtype_mismatch, "bias");
  check_refused([&] { call(two, {}, {}, {}, i32({1})); }, ErrorCode::shape_mismatch, "one for each batch");
  check_refused([&] { call(q, {}, cu, cu, {}, i32({1})); }, ErrorCode::shape_mismatch, "one for each sequence");
  check_refused([&] { call(q, {}, cu, cu, i32({1, 1}), {}, false); }, ErrorCode::invalid_argument, "causal");
  check_refused([&] { call(q, {}, cu, cu, {}, i32({1, 4})); }, ErrorCode::out_of_range, "seqlen_k is 4 at element 1");
  check_refused([&] { call(q, {}, {}, {}, {}, i32({-1})); }, ErrorCode::out_of_range, "seqlen_k is -1");
  check_refused([&] { call(q, {}, {}, {}, {}, {}, true, 1); }, ErrorCode::invalid_argument, "dropout_p is 1");
  check_refused([&] { call(q, {}, i32({0, 1, 5}), cu); }, ErrorCode::out_of_range, "max_seqlen_q = 3");
}

}  // namespace attention_test
