// Ops whose kernels gather the parts of sharded lines, or add up those of groups of images, and attention with sharded
// keys: values and layouts against one rank, for uneven and empty shards, and for dims that two mesh axes share.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace parts_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Tensors = std::vector<Tensor>;
using Call = std::function<Tensors(const Tensor&)>;
using Elements = std::vector<std::vector<double>>;  // of each result

template <class Results>
Tensors both(const Results& results) {
  return {std::get<0>(results), std::get<1>(results)};
}

/// A mesh of 2 by 3 ranks.
const ProcessMesh* mesh_of_axes() { return ProcessMesh::make({2, 3}, {}, {"a", "b"}); }

/// Ops that gather the parts of a line, along the last dim.
std::vector<std::pair<std::string, Call>> calls_along_lines() {
  std::vector<std::pair<std::string, Call>> calls;
  for (const bool reverse : {false, true}) {
    for (const bool exclusive : {false, true}) {
      calls.emplace_back("cumsum", [=](const Tensor& x) { return Tensors{cumsum(x, -1, false, exclusive, reverse)}; });
      calls.emplace_back("logcumsumexp",
                         [=](const Tensor& x) { return Tensors{logcumsumexp(x, -1, false, exclusive, reverse)}; });
    }
  }
  calls.emplace_back("cumprod", [](const Tensor& x) { return Tensors{cumprod(x, -1)}; });
  calls.emplace_back("cummax", [](const Tensor& x) { return both(cummax(x)); });
  calls.emplace_back("cummin", [](const Tensor& x) { return both(cummin(x, -1, DType::int32)); });
  for (const bool largest : {false, true}) {
    for (const int k : {1, 2})
      calls.emplace_back("topk", [=](const Tensor& x) { return both(topk(x, k, -1, largest)); });
  }
  return calls;
}

Elements elements_of(const Tensors& results) {
  Elements all;
  for (const Tensor& result : results)
    all.push_back(cast(result.is_dist() ? full_tensor(result) : result, DType::float64).to_vector<double>());
  return all;
}

/// True where both are NaN or have the same bits, or differ by at most `tolerance` of the larger, or of 1.
bool alike(const Elements& a, const Elements& b, double tolerance = 0) {
  const auto near = [=](double p, double q) {
    if (std::isnan(p) || std::isnan(q) || p == q)
      return std::isnan(p) == std::isnan(q) && (std::isnan(p) || std::signbit(p) == std::signbit(q));
    return std::abs(p - q) <= tolerance * std::max({1.0, std::abs(p), std::abs(q)});
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), near);
  });
}

/// Compares each of the calls in each of the layouts with one rank. Sums of logarithms are rounded in another order.
void compare_along_lines(const Dims& dims, const std::vector<float>& values, const std::vector<const char*>& layouts) {
  for (const auto& [op, f] : calls_along_lines()) {
    const std::string name = op;
    const Call call = f;
    const Elements expected = elements_of(call(Tensor::from_data(values, dims)));
    run_ranks(6, [&](Rank&) {
      for (const char* layout : layouts) {
        const DistSpec* spec = DistSpec::parse(mesh_of_axes(), layout);
        const Tensors got = call(distribute(Tensor::from_data(values, dims), spec));
        check(name == "topk" || name == "cumprod" || spec_of(got[0]) == spec, name + " keeps the layout " + layout);
        check(alike(elements_of(got), expected, name == "logcumsumexp" ? 1e-6 : 0), name + " in " + layout);
      }
    });
  }
}

/// Compares the gradient of the squares of f(x), with the columns of x sharded over 2 and 3 ranks, with one rank.
void compare_gradient(const std::string& name, const std::function<Tensor(const Tensor&)>& f, double tolerance) {
  const Tensor plain = cast(remainder(square(iota<float>({3, 40})), full({1}, 11)), DType::float64);
  const auto slope = [&](const Tensor& given) {
    const Tensor x = assign(given).detach().set_requires_grad(true);
    const Tensor y = f(x);
    return Tensors{grad({sum(multiply(y, y), {})}, {x})[0]};
  };
  const Elements expected = elements_of(slope(plain));
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](Rank&) {
      const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"a"});
      const Tensors got = slope(distribute(plain, DistSpec::parse(mesh, "-, a")));
      check(alike(elements_of(got), expected, tolerance), "the gradient of " + name);
    });
  }
}

}  // namespace

TEST_CASE("parts of lines are in the order of the line, for uneven and empty shards and for two axes on a dim") {
  std::vector<float> values;
  for (int i = 0; i < 3 * 11; ++i) values.push_back(static_cast<float>(i * i % 7 - 3));
  const std::vector<const char*> layouts = {"-, a", "-, b", "-, a+b", "-, b+a", "a, b", "b, a"};
  compare_along_lines({3, 11}, values, layouts);
  compare_along_lines({11, 3}, values, layouts);  // with empty shards
  compare_along_lines({33}, values, {"a", "b", "a+b", "b+a"});
  values.pop_back();
  compare_along_lines({16, 2}, values, {"-, a+b", "-, b+a"});
}

TEST_CASE("parts of lines keep infinities, NaN and zeros of both signs") {
  const std::vector<float> values = {-0.0f, 0,     -0.0f, 0,    -0.0f, 0,      //
                                     -kInf, -kInf, -kInf, 1,    2,     3,      //
                                     kNaN,  1,     kNaN,  kInf, 3,     -kInf,  //
                                     1,     2,     3,     kNaN, kNaN,  4,      //
                                     kInf,  kInf,  1,     1,    -kInf, 2};
  compare_along_lines({5, 6}, values, {"-, a", "-, b", "-, a+b", "-, b+a"});
}

TEST_CASE("running products of parts do not overflow alone, and become infinite or 0 where those of one rank do") {
  const double large = 1e200, small = 1e-200, least = 5e-324, most = 1.7e308;
  const std::vector<double> values = {
      large, small, large, small, large, small,  // products of no two neighbours overflow
      1,     small, small, large, large, large,  // 0 on the way
      large, large, small, small, 2,     -3,     // infinite on the way
      small, small, 0,     large, large, large,  //
      large, large, 1,     1,     0,     1,      // NaN after the infinity
      large, -1,    large, 1,     -1,    2,      // of both signs
      0.5,   most,  2,     -1,    0.5,   1,      // up to the largest numbers
      least, 3,     large, 1,     0.25,  least,  // what is least is not 0
      kInf,  1,     2,     -1,    kNaN,  1};
  const Dims dims{9, 6};
  const Tensor plain = Tensor::from_data(values, dims);
  const std::vector<double> expected = elements_of({cumprod(plain, -1)})[0];
  const auto near = [](double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    return std::signbit(a) == std::signbit(b) && (a == b || std::abs(a - b) <= 1e-15 * std::abs(b));
  };
  run_ranks(6, [&](Rank&) {
    for (const char* layout : {"-, a", "-, b", "-, a+b", "-, b+a"}) {
      const Tensor x = distribute(plain, DistSpec::parse(mesh_of_axes(), layout));
      const std::vector<double> got = elements_of({cumprod(x, -1)})[0];
      check(std::equal(got.begin(), got.end(), expected.begin(), expected.end(), near), std::string("in ") + layout);
    }
  });
}

TEST_CASE("a part whose products leave the range of a double at both ends counts as at the end that they leave first") {
  const Tensor plain =
      Tensor::from_data<double>({1, 1, 1, 1, 1, 1e-200, 1e-200, 1e300,  1e300,  1e300,  2, 1, 1, 1, 1,
                                 1, 1, 1, 1, 1, 1e200,  1e200,  1e-300, 1e-300, 1e-300, 2, 1, 1, 1, -1},
                                {2, 15});
  const Elements expected = elements_of({cumprod(plain, 1)});
  run_ranks(3, [&](Rank&) {
    const Tensor x = distribute(plain, DistSpec::parse(ProcessMesh::make({3}, {}, {"a"}), "-, a"));
    check(alike(elements_of({cumprod(x, 1)}), expected), "zeros stay zeros, and infinities infinite");
  });
}

TEST_CASE("running products of integers that wrap, and in place, are those of one rank") {
  for (const DType dtype : {DType::uint8, DType::int32, DType::int64, DType::bfloat16, DType::float16}) {
    const Tensor plain = cast(scale(remainder(square(iota<float>({7, 90})), full({1}, 11)), 2, 1), dtype);
    const Elements expected = elements_of({cumprod(plain, 1)});
    run_ranks(3, [&](Rank&) {
      Tensor x = distribute(plain, DistSpec::parse(ProcessMesh::make({3}, {}, {"a"}), "-, a"));
      check(alike(elements_of({cumprod(x, 1)}), expected), "cumprod");
      cumprod_(x, 1);
      check(alike(elements_of({x}), expected) && spec_of(x)->text() == "[-, a]", "cumprod_");
    });
  }
}

TEST_CASE("running sums of other dims, of integers that wrap and in place are those of one rank") {
  const std::vector<int64_t> values = {100, 100, 9, 7, 100, 100, 100, 3, 1, 100};
  for (const DType dtype : {DType::uint8, DType::int32, DType::int64, DType::bfloat16, DType::float16}) {
    const Tensor plain = cast(Tensor::from_data(values, Dims{5, 2}), dtype);
    const Elements expected = elements_of({cumsum(plain, 0)});
    run_ranks(3, [&](Rank&) {
      const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"a"});
      Tensor x = distribute(plain, DistSpec::parse(mesh, "a, -"));
      check(alike(elements_of({cumsum(x, 0)}), expected), "cumsum");
      cumsum_(x, 0);
      check(alike(elements_of({x}), expected) && spec_of(x)->text() == "[a, -]", "cumsum_");
    });
  }
}

TEST_CASE("the first elements of sharded lines are those of one rank for every k and dtype") {
  std::vector<int64_t> values;
  for (int i = 0; i < 2 * 40; ++i) values.push_back(i * 7 % 5);  // many are equal
  const Tensor plain = Tensor::from_data(values, Dims{2, 40});
  for (const DType dtype : {DType::int64, DType::uint8, DType::boolean, DType::bfloat16, DType::float64}) {
    for (const int k : {1, 3, 14, 40}) {
      const Elements expected = elements_of(both(topk(cast(plain, dtype), k)));
      for (const int ranks : {2, 3}) {
        run_ranks(ranks, [&](Rank&) {
          const ProcessMesh* mesh = ProcessMesh::make({ranks}, {}, {"a"});
          const Tensors got = both(topk(cast(distribute(plain, DistSpec::parse(mesh, "-, a")), dtype), k));
          check(alike(elements_of(got), expected), "topk " + std::to_string(k));
          check(spec_of(got[0])->text() == "[-, -]" && spec_of(got[1])->text() == "[-, -]", "the result is whole");
        });
      }
    }
  }
}

TEST_CASE("the first elements of lines in uneven shards are sent instead of the shards") {
  const Tensor plain = cast(Tensor::from_data(std::vector<float>{3, 1, 2, 5, 4, 5, 0, 5, -1}, Dims{9}), DType::float64);
  for (const bool largest : {false, true}) {
    const Elements expected = elements_of(both(topk(plain, 1, 0, largest)));
    run_ranks(4, [&](Rank& rank) {
      const Tensor x = distribute(plain, DistSpec::parse(ProcessMesh::make({4}, {}, {"a"}), "a"));
      const int64_t before = rank.stats().bytes_sent;
      const Tensors got = both(topk(x, 1, 0, largest));
      check(rank.stats().bytes_sent - before == 3 * 16, "a candidate is sent to each other rank");
      check(alike(elements_of(got), expected), "topk");
    });
  }
}

TEST_CASE("gradients of ops that gather parts of lines are those of one rank") {
  compare_gradient(
      "cumsum", [](const Tensor& x) { return cumsum(x, 1, false, true, true); }, 0);
  compare_gradient(
      "logcumsumexp", [](const Tensor& x) { return logcumsumexp(x, 1); }, 1e-10);
  compare_gradient(
      "cummax", [](const Tensor& x) { return std::get<0>(cummax(x, 1)); }, 0);
  compare_gradient(
      "topk", [](const Tensor& x) { return std::get<0>(topk(x, 2, 1)); }, 0);
}

namespace {

/// group_norm, or instance_norm for no groups, of an image with 4 channels, behind its gradients.
Tensors norm_of_image(const Tensor& image, int groups, const std::string& format) {
  const auto leaf = [&](const std::vector<double>& values) {
    const Tensor plain = Tensor::from_data(values, Dims{4});
    return (image.is_dist() ? distribute(plain, DistSpec::replicated(spec_of(image)->mesh(), 1)) : plain)
        .set_requires_grad(true);
  };
  const Tensor x = assign(image).detach().set_requires_grad(true), scale = leaf({1, 2, -1, 3}),
               bias = leaf({0, 1, 2, -1});
  const Tensor y = groups == 0 ? instance_norm(x, scale, bias) : group_norm(x, scale, bias, 1e-5f, groups, format);
  Tensors all = grad({sum(multiply(y, multiply(y, y)), {})}, {x, scale, bias});
  all.push_back(y);
  return all;
}

void compare_norms(int groups, const std::string& format) {
  std::vector<double> values;
  for (int i = 0; i < 2 * 4 * 5 * 3; ++i) values.push_back(std::sin(i * i));
  const Tensor plain = Tensor::from_data(values, format[1] == 'C' ? Dims{2, 4, 5, 3} : Dims{2, 5, 3, 4});
  const Elements expected = elements_of(norm_of_image(plain, groups, format));
  run_ranks(6, [&](Rank&) {
    for (const char* layout :
         {"-, a, b, -", "-, b, -, a", "a, b, -, -", "-, a+b, -, -", "-, -, b+a, -", "b, -, a, -", "-, -, -, b+a"}) {
      const std::string what = std::to_string(groups) + " groups, " + format + " in " + layout;
      const Tensor x = distribute(plain, DistSpec::parse(mesh_of_axes(), layout));
      const Tensors results = norm_of_image(x, groups, format);
      check(spec_of(results[0]) == spec_of(x) && spec_of(results[3]) == spec_of(x), "layouts of " + what);
      check(alike(elements_of({results[0], results[3]}), {expected[0], expected[3]}, 1e-10), what);
      check(alike(elements_of({results[1], results[2]}), {expected[1], expected[2]}, 1e-10), "weights, " + what);
    }
  });
}

}  // namespace

TEST_CASE("norms of images whose channels or places are sharded, and their gradients, are those of one rank") {
  for (const int groups : {0, 1, 2, 4}) {
    compare_norms(groups, "NCHW");
    if (groups != 0) compare_norms(groups, "NHWC");
  }
}

TEST_CASE("norms of sharded images send the sums of groups and no elements") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor x = distribute(ones({3, 4, 64, 64}, DType::float32), DistSpec::parse(mesh, "-, -, a, -"));
    const auto sends = [&](int64_t bytes, const std::function<void()>& call) {
      const int64_t before = rank.stats().bytes_sent;
      call();
      check(rank.stats().bytes_sent - before == bytes, "sent " + std::to_string(rank.stats().bytes_sent - before));
    };
    // An all-reduce between two ranks sends as many bytes as it reduces: a mean and a variance of 8 B for each group.
    sends(3 * 2 * 16, [&] { group_norm(x, {}, {}, 1e-5f, 2); });
    sends(3 * 4 * 16, [&] { instance_norm(x, {}, {}); });
    const Tensor scale = distribute(ones({4}, DType::float32), DistSpec::parse(mesh, "-"));
    const auto [y, mean, variance] = group_norm_intermediate(x, scale, scale, 1e-5f, 2);
    // Two sums of each group, and the gradients of scale and bias.
    sends(3 * 2 * 16 + 2 * 4 * 8, [&, y = y, mean = mean, variance = variance] {
      group_norm_grad(x, scale, scale, mean, variance, y, 1e-5f, 2);
    });
  });
}

namespace {

/// `dims` numbers, with `at_end` added to the last key where these are keys.
Tensor numbers(const Dims& dims, int start, double at_end = 0) {
  std::vector<double> values;
  for (int64_t i = 0; i < dims.numel(); ++i) {
    const bool ends = dims.rank() == 4 && i / dims.numel(2, 4) % dims[1] == dims[1] - 1;
    values.push_back(std::sin(static_cast<double>(i * i + start)) + (ends ? at_end : 0));
  }
  return Tensor::from_data(values, dims);
}

/// One call of attention on q [2, 3, 4, 5] and `keys` keys, in two heads, and its gradients.
struct Attention {
  int64_t keys;
  bool causal, masked;
  float dropout;
  double last = 0;  // added to the last key and its value, which the last query alone sees if `causal`

  /// `layout`: of k and v on a mesh, null for plain tensors.
  Tensors run(const ProcessMesh* mesh, const char* layout) const {
    const auto placed = [&](const Tensor& plain, const char* text) {
      if (layout == nullptr) return assign(plain);
      const int rank = plain.dims().rank();
      return distribute(plain, text == nullptr ? DistSpec::replicated(mesh, rank) : DistSpec::parse(mesh, text));
    };
    const Tensor q = placed(numbers({2, 3, 4, 5}, 0), nullptr).set_requires_grad(true),
                 k = placed(numbers({2, keys, 2, 5}, 1, last), layout).set_requires_grad(true),
                 v = placed(numbers({2, keys, 2, 6}, 2, last), layout).set_requires_grad(true),
                 seed = placed(Tensor::from_data(std::vector<int64_t>{3, 5}, Dims{2}), nullptr);
    const Tensor mask = masked ? placed(numbers({2, 1, 3, keys}, 3), nullptr) : Tensor();
    const auto [out, softmax, lse, used] = flash_attn(q, k, v, seed, mask, dropout, causal, true);
    Tensors results = grad({sum(multiply(out, out), {})}, {q, k, v});
    results.insert(results.end(), {out, softmax, lse, used});
    return results;
  }
};

}  // namespace

TEST_CASE("attention with sharded keys, and its gradients, are those of one rank") {
  for (const Attention& attention :
       {Attention{13, false, false, 0}, Attention{13, true, true, 0}, Attention{70, true, false, 0.5f},
        Attention{2, true, true, 0}, Attention{13, true, false, 0, kNaN}}) {
    const Elements expected = elements_of(attention.run(nullptr, nullptr));
    REQUIRE(std::isfinite(expected[0][0]));  // query 0, also where another one sees a key that is not finite
    run_ranks(6, [&](Rank&) {
      for (const char* layout :
           {"-, a, -, -", "-, b, -, -", "-, a+b, -, -", "-, b+a, -, -", "a, b, -, -", "-, b, a, -"}) {
        const Tensors got = attention.run(mesh_of_axes(), layout);
        const std::string what = std::to_string(attention.keys) + " keys in " + layout;
        check(alike(elements_of(got), expected, 1e-12), what);
        check(spec_of(got[1])->text() == spec_of(got[2])->text(), "layouts of gradients, " + what);
      }
    });
  }
}

TEST_CASE("attention sends sums of queries instead of keys where those are fewer bytes") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor k = distribute(ones({2, 64, 4, 8}, DType::float32), DistSpec::parse(mesh, "-, a, -, -"));
    const auto sent = [&](int64_t queries) {
      const Tensor q = distribute(ones({2, queries, 4, 8}, DType::float32), DistSpec::replicated(mesh, 4));
      const int64_t before = rank.stats().bytes_sent;
      flash_attn(q, k, k, {}, {});
      return rank.stats().bytes_sent - before;
    };
    check(sent(1) == 2 * 1 * 4 * (8 + 2) * 4, "the maximum, the sum and 8 values of each query and head");
    check(sent(8192) == 2 * (2 * 32 * 4 * 8) * 4, "the keys and values");
  });
}

namespace {

/// One call of memory_efficient_attention on 3 queries in 4 heads and `keys` keys in 2, and its gradients.
struct SelectedAttention {
  int64_t keys;
  bool causal;
  Dims bias;                                // or none
  std::vector<int32_t> diagonals, lengths;  // or none
  double last = 0;                          // added to the last key and its value

  /// `layout`: of k and v on a mesh, null for plain tensors.
  Tensors run(const ProcessMesh* mesh, const char* layout) const {
    const auto placed = [&](const Tensor& plain, const char* text) {
      if (layout == nullptr || !plain.defined()) return plain.defined() ? assign(plain) : plain;
      const int rank = plain.dims().rank();
      return distribute(plain, text == nullptr ? DistSpec::replicated(mesh, rank) : DistSpec::parse(mesh, text));
    };
    const auto of_batches = [&](const std::vector<int32_t>& each) {
      return placed(each.empty() ? Tensor() : Tensor::from_data(each, Dims{2}), nullptr);
    };
    const Tensor q = placed(numbers({2, 3, 4, 5}, 0), nullptr).set_requires_grad(true),
                 k = placed(numbers({2, keys, 2, 5}, 1, last), layout).set_requires_grad(true),
                 v = placed(numbers({2, keys, 2, 6}, 2, last), layout).set_requires_grad(true);
    const Tensor added = bias.rank() == 0 ? Tensor() : placed(numbers(bias, 3), nullptr).set_requires_grad(true);
    const auto [out, lse, seed] = memory_efficient_attention(q, k, v, added, {}, {}, of_batches(diagonals),
                                                             of_batches(lengths), -1, -1, causal, 0, -1, false);
    Tensors leaves = {q, k, v};
    if (added.defined()) leaves.push_back(added);
    Tensors results = grad({sum(multiply(out, out), {})}, leaves);
    results.insert(results.end(), {out, lse});
    return results;
  }
};

}  // namespace

TEST_CASE("memory-efficient attention with sharded keys, and its gradients, are those of one rank") {
  const double hidden = std::numeric_limits<double>::infinity();
  for (const SelectedAttention& attention :
       {SelectedAttention{13, false, {}, {}, {}}, SelectedAttention{13, true, {2, 1, 3, 13}, {9, 1}, {}},
        SelectedAttention{70, true, {3, 70}, {40, -1}, {60, 3}}, SelectedAttention{2, false, {1, 4, 1, 2}, {}, {2, 0}},
        SelectedAttention{13, false, {}, {}, {12, 5}, hidden}}) {
    const Elements expected = elements_of(attention.run(nullptr, nullptr));
    REQUIRE(std::isfinite(expected[0][0]));
    run_ranks(6, [&](Rank&) {
      for (const char* layout :
           {"-, a, -, -", "-, b, -, -", "-, a+b, -, -", "-, b+a, -, -", "a, b, -, -", "-, b, a, -"}) {
        const Tensors got = attention.run(mesh_of_axes(), layout);
        const std::string what = std::to_string(attention.keys) + " keys in " + layout;
        check(alike(elements_of(got), expected, 1e-12), what);
        check(spec_of(got[1])->text() == spec_of(got[2])->text(), "layouts of gradients, " + what);
      }
    });
  }
}

TEST_CASE("memory-efficient attention drops the same weights where keys are sharded, in its gradients too") {
  const Tensor q = numbers({2, 3, 4, 5}, 0), k = numbers({2, 70, 4, 5}, 1), v = numbers({2, 70, 4, 6}, 2);
  run_ranks(3, [&](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({3}, {}, {"a"});
    const auto leaves = [&] {
      const DistSpec *whole = DistSpec::replicated(mesh, 4), *keys = DistSpec::parse(mesh, "-, a, -, -");
      return Tensors{distribute(q, whole).set_requires_grad(true), distribute(k, keys).set_requires_grad(true),
                     distribute(v, keys).set_requires_grad(true)};
    };
    const Tensors in = leaves();
    const auto [out, lse, seed] =
        memory_efficient_attention(in[0], in[1], in[2], {}, {}, {}, {}, {}, -1, -1, false, 0.5, -1, false);
    const auto gradients = [&](const Tensor& result, const Tensors& of) {
      Tensors all = grad({sum(square(result), {})}, of);
      all.push_back(result);
      return elements_of(all);
    };
    const Tensors plain = {assign(q).detach().set_requires_grad(true), assign(k).detach().set_requires_grad(true),
                           assign(v).detach().set_requires_grad(true)};
    const Tensor whole = std::get<0>(flash_attn(plain[0], plain[1], plain[2], full_tensor(seed), {}, 0.5f));
    check(alike(gradients(out, in), gradients(whole, plain), 1e-12), "dropped weights");
  });
}

TEST_CASE("memory-efficient attention sends sums of queries instead of keys where those are fewer bytes") {
  run_ranks(2, [](Rank& rank) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor k = distribute(ones({2, 64, 4, 8}, DType::float32), DistSpec::parse(mesh, "-, a, -, -"));
    const auto sent = [&](int64_t queries) {
      const Tensor q = distribute(ones({2, queries, 4, 8}, DType::float32), DistSpec::replicated(mesh, 4));
      const int64_t before = rank.stats().bytes_sent;
      memory_efficient_attention(q, k, k, {}, {}, {}, {}, {}, -1, -1, false, 0, -1, true);
      return rank.stats().bytes_sent - before;
    };
    check(sent(1) == 2 * 1 * 4 * (8 + 2) * 4, "the maximum, the sum and 8 values of each query and head");
    check(sent(8192) == 2 * (2 * 32 * 4 * 8) * 4, "the keys and values");
  });
}

TEST_CASE("a length beyond all keys is an error on each rank that has some of them") {
  run_ranks(2, [](Rank&) {
    const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
    const Tensor q = distribute(ones({1, 2, 1, 4}, DType::float32), DistSpec::replicated(mesh, 4)),
                 k = distribute(ones({1, 6, 1, 4}, DType::float32), DistSpec::parse(mesh, "-, a, -, -"));
    const auto call = [&](int32_t length) {
      const Tensor lengths =
          distribute(Tensor::from_data(std::vector<int32_t>{length}, Dims{1}), DistSpec::replicated(mesh, 1));
      memory_efficient_attention(q, k, k, {}, {}, {}, {}, lengths, -1, -1, false, 0, -1, true);
    };
    call(6);
    std::string message;
    try {
      call(7);
    } catch (const Error& error) { message = error.what(); }
    check(message.find("seqlen_k is 7 at element 0, but must be from 0 to 6") != std::string::npos, message);
  });
}

}  // namespace parts_test
