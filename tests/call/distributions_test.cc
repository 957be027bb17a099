// Draws from distributions: shards have the bits of the whole, the numbers have the distribution, and bad parameters
// are refused.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <functional>

#include "shard/call/dense_call.h"
#include "shard/kernels/registry.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace distributions_test {

using namespace shard;
using namespace shard::test;

namespace {

constexpr uint64_t kSeed = 77;
constexpr int64_t kCount = 40000;

/// The float64 values of `call`, with the state that a world of seed kSeed starts with.
std::vector<double> numbers(const std::function<Tensor()>& call) {
  Generator& generator = call::thread_generator();
  const RandomKey saved = generator.state();
  generator.set_seed(kSeed);
  const std::vector<double> result = cast(call(), DType::float64).to_vector<double>();
  generator.set_state(saved);
  return result;
}

/// Both moments within five standard errors, with room for the kurtosis of the distributions below.
void check_moments(const std::vector<double>& values, double mean, double variance) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += (value - mean) * (value - mean);
  }
  INFO("mean " << sum / count << " of " << mean << "; variance " << squares / count << " of " << variance);
  CHECK(std::abs(sum / count - mean) < 5 * std::sqrt(variance / count));
  CHECK(std::abs(squares / count - variance) < 0.1 * variance);
}

/// Pearson's test at five standard deviations; values of a small expectation are one class.
void check_frequencies(const std::vector<double>& values, const std::function<double(int)>& probability, int most) {
  std::vector<double> counts(static_cast<size_t>(most) + 1);
  for (const double value : values) {
    REQUIRE(value == std::floor(value));
    REQUIRE(value >= 0);
    if (value <= most) ++counts[static_cast<size_t>(value)];
  }
  const auto total = static_cast<double>(values.size());
  double chi = 0, rest_expected = total, rest = total, classes = 0;
  for (int k = 0; k <= most; ++k) {
    const double expected = total * probability(k);
    if (expected < 20) continue;
    chi += std::pow(counts[static_cast<size_t>(k)] - expected, 2) / expected;
    rest_expected -= expected;
    rest -= counts[static_cast<size_t>(k)];
    ++classes;
  }
  if (rest_expected >= 20) chi += std::pow(rest - rest_expected, 2) / rest_expected;
  INFO("chi2 " << chi << " of " << classes << " classes");
  CHECK(chi < classes + 5 * std::sqrt(2 * classes) + 10);
}

double log_choose(double n, double k) { return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1); }

}  // namespace

TEST_CASE("34: poisson, binomial, gamma, dirichlet, multinomial and top_p_sampling shards have the bits of the whole") {
  const Tensor parameter = cast(uniform({7, 5}, DType::float32, 0.1, 30.0, 3), DType::float64);
  const Tensor chance = scale(parameter, 1.0 / 31);
  const Tensor trials = full({7, 5}, 40.0, DType::float64);
  using Call = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;
  const std::vector<Call> calls = {
      [](const Tensor& x, const Tensor&, const Tensor&) { return poisson(x); },
      [](const Tensor& x, const Tensor&, const Tensor&) { return standard_gamma(x); },
      [](const Tensor& x, const Tensor&, const Tensor&) { return dirichlet(x); },
      [](const Tensor&, const Tensor& p, const Tensor& n) { return binomial(n, p); },
      [](const Tensor& x, const Tensor&, const Tensor&) { return multinomial(x, 3, false); },
      [](const Tensor& x, const Tensor&, const Tensor&) { return multinomial(x, 9, true); },
      [](const Tensor& x, const Tensor& chance, const Tensor&) {
        return std::get<1>(top_p_sampling(x, slice(chance, {1}, {0}, {1}), {}));
      },
      [](const Tensor& x, const Tensor& chance, const Tensor&) {  // a threshold of each row, some below all, some above
        const Tensor threshold = scale(slice(chance, {1}, {1}, {2}), 30);
        return std::get<1>(top_p_sampling(x, scale(slice(chance, {1}, {0}, {1}), 60), threshold));
      }};
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::vector<double> expected = numbers([&] { return calls[i](parameter, chance, trials); });
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks,
                [&](Rank& rank) {
                  const RandomKey start = rank.generator.state();
                  const ProcessMesh* mesh = ProcessMesh::make({ranks});
                  for (const char* layout : {"a, -", "-, a", "-, -"}) {
                    rank.generator.set_state(start);
                    const auto put = [&](const Tensor& t) { return distribute(t, DistSpec::parse(mesh, layout)); };
                    check(
                        full_equals(cast(calls[i](put(parameter), put(chance), put(trials)), DType::float64), expected),
                        "call " + std::to_string(i) + " " + layout);
                  }
                },
                {.seed = kSeed});
    }
  }
}

TEST_CASE("34: numbers drawn in place have the bits of the whole and those of ops that make tensors") {
  const auto fresh = [] { return zeros({7, 5}, DType::float64); };
  using Call = std::function<Tensor(Tensor)>;
  const std::vector<Call> calls = {[](Tensor x) { return uniform_inplace_(x, 2, 5, 0, 3, 5, -1); },
                                   [](Tensor x) { return gaussian_inplace_(x, 2, 5); },
                                   [](Tensor x) { return exponential_(x, 2); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::vector<double> expected = numbers([&] { return calls[i](fresh()); });
    run_ranks(3,
              [&](Rank& rank) {
                const RandomKey start = rank.generator.state();
                const ProcessMesh* mesh = ProcessMesh::make({3});
                for (const char* layout : {"a, -", "-, a", "-, -"}) {
                  rank.generator.set_state(start);
                  const Tensor x = distribute(fresh(), DistSpec::parse(mesh, layout));
                  const Tensor out = calls[i](x);
                  check(full_equals(out, expected), "call " + std::to_string(i) + " " + layout);
                  check(full_equals(x, expected), "x is written");
                }
              },
              {.seed = kSeed});
  }
  std::vector<double> uniforms = numbers([] { return uniform({7, 5}, DType::float64, 2, 5); });
  for (const size_t at : {0, 6, 12}) uniforms[at] = -1;
  CHECK(numbers([&] { return uniform_inplace(fresh(), 2, 5, 0, 3, 5, -1); }) == uniforms);
  CHECK(numbers([&] { return gaussian_inplace(fresh(), 2, 5); }) == numbers([] {
          return gaussian({7, 5}, 2, 5, 0, DType::float64);
        }));
}

TEST_CASE("34: exponential numbers have the moments of their rate") {
  for (const float rate : {0.25f, 3.0f}) {
    Tensor x = zeros({kCount}, DType::float64);
    const std::vector<double> drawn = numbers([&] { return exponential_(x, rate); });
    check_moments(drawn, 1.0 / rate, 1.0 / (rate * rate));
    CHECK(*std::min_element(drawn.begin(), drawn.end()) >= 0);
  }
  Tensor half = zeros({1000}, DType::bfloat16);
  CHECK(exponential_(half, 1).dtype() == DType::bfloat16);
}

TEST_CASE("drawing in place refuses what it cannot draw") {
  Tensor x = zeros({2, 3}), integers = zeros({2}, DType::int64);
  error_of([&] { uniform_inplace_(x, 2, 1); }, ErrorCode::invalid_argument);
  error_of([&] { uniform_inplace_(x, 0, 1, 0, -1); }, ErrorCode::invalid_argument);
  check_contains(error_of([&] { uniform_inplace_(x, 0, 1, 0, 4, 1); }, ErrorCode::out_of_range), "but x has 6");
  uniform_inplace_(x, 0, 1, 0, 3, 1);
  error_of([&] { gaussian_inplace_(x, 0, -1); }, ErrorCode::invalid_argument);
  error_of([&] { exponential_(x, 0); }, ErrorCode::invalid_argument);
  error_of([&] { exponential_(integers, 1); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("34: truncated gaussian numbers of a shard are those of the whole") {
  using Kernel = void(const OpContext&, float, float, int, RandomKey, DenseTensor&);
  const std::vector<double> whole = numbers([] {
    return truncated_gaussian_random({4, 9}, 1.0f, 2.0f, 0, DType::float64);
  });
  const Box boxes[] = {{{4, 9}, {1, 3}}};
  const LocalCall local{{}, boxes, nullptr, {kSeed, 0}};
  const OpContext ctx{"truncated_gaussian_random", &local};
  DenseTensor out = DenseTensor::allocate(kCpu, {{2, 4}, DType::float64});
  kernel_table("truncated_gaussian_random")
      .find<Kernel>(ctx, kCpu, DType::float64)
      .function(ctx, 1.0f, 2.0f, 0, ctx.local->random, out);
  for (size_t i = 0; i < 8; ++i) CHECK(out.data<double>()[i] == whole[(1 + i / 4) * 9 + 3 + i % 4]);
}

TEST_CASE("34: poisson and binomial numbers have their frequencies, below and above the mean of the rejection") {
  for (const double mean : {0.3, 4.0, 9.99, 10.0, 37.5, 400.0}) {
    const std::vector<double> drawn = numbers([=] { return poisson(full({kCount}, mean, DType::float64)); });
    check_moments(drawn, mean, mean);
    check_frequencies(
        drawn, [=](int k) { return std::exp(k * std::log(mean) - mean - std::lgamma(k + 1.0)); }, 600);
  }
  for (const auto& [n, p] : {std::pair(5, 0.5), {40, 0.1}, {40, 0.9}, {60, 0.5}, {1000, 0.03}, {1000, 0.8}}) {
    const std::vector<double> drawn = numbers(
        [n = n, p = p] { return binomial(full({kCount}, n, DType::float64), full({kCount}, p, DType::float64)); });
    check_moments(drawn, n * p, n * p * (1 - p));
    check_frequencies(
        drawn,
        [n = n, p = p](int k) { return std::exp(log_choose(n, k) + k * std::log(p) + (n - k) * std::log1p(-p)); }, n);
  }
}

TEST_CASE("34: gamma, dirichlet and truncated gaussian numbers have their moments") {
  for (const double shape : {0.2, 1.0, 2.5, 50.0})
    check_moments(numbers([=] { return standard_gamma(full({kCount}, shape, DType::float64)); }), shape, shape);
  const std::vector<double> alpha = {0.5, 1, 2.5};
  const std::vector<double> rows = numbers([&] {
    return dirichlet(expand(Tensor::from_data(alpha, {1, 3}), {kCount, 3}));
  });
  for (size_t k = 0; k < 3; ++k) {
    std::vector<double> column;
    for (size_t row = 0; row < rows.size(); row += 3) {
      REQUIRE(rows[row] + rows[row + 1] + rows[row + 2] == Approx(1));
      column.push_back(rows[row + k]);
    }
    check_moments(column, alpha[k] / 4, alpha[k] * (4 - alpha[k]) / (4 * 4 * 5));
  }
  // All variates of these shapes are too small for a double; their quotients are not.
  for (const double value : numbers([] { return dirichlet(full({50, 4}, 1e-4, DType::float64)); }))
    REQUIRE((value >= 0 && value <= 1));
  const std::vector<double> cut =
      numbers([] { return truncated_gaussian_random({kCount}, 3.0f, 0.5f, 0, DType::float64); });
  for (const double value : cut) REQUIRE(std::abs(value - 3) <= 1);
  check_moments(cut, 3, 0.25 * 0.7737413);  // 1 - 4 phi(2) / (2 Phi(2) - 1)
}

TEST_CASE("34: multinomial draws categories by their weights, none of weight 0 and none twice without replacement") {
  const std::vector<double> weights = {1, 0, 3, 4};
  const Tensor x = Tensor::from_data(weights, {4});
  const std::function<double(int)> probability = [&](int k) { return weights[static_cast<size_t>(k)] / 8; };
  check_frequencies(numbers([&] { return multinomial(x, kCount, true); }), probability, 3);
  const std::vector<double> drawn = numbers([&] { return multinomial(expand(x, {kCount, 4}), 3, false); });
  std::vector<double> first, last;
  for (size_t i = 0; i < drawn.size(); i += 3) {
    REQUIRE(drawn[i] + drawn[i + 1] + drawn[i + 2] == 5);  // 0, 2 and 3 in some order
    REQUIRE((drawn[i] != drawn[i + 1] && drawn[i] != drawn[i + 2] && drawn[i] != 1 && drawn[i + 1] != 1));
    first.push_back(drawn[i]);
    last.push_back(drawn[i + 2]);
  }
  check_frequencies(first, probability, 3);
  // Category k is last with the probability of the two orders of the others, a and b:
  // w_a w_b / 8 (1 / (8 - w_a) + 1 / (8 - w_b)).
  const std::vector<double> is_last = {12.0 / 8 * (1.0 / 5 + 1.0 / 4), 0, 4.0 / 8 * (1.0 / 7 + 1.0 / 4),
                                       3.0 / 8 * (1.0 / 7 + 1.0 / 5)};
  check_frequencies(
      last, [&](int k) { return is_last[static_cast<size_t>(k)]; }, 3);
}

TEST_CASE("34: top_p_sampling draws from the likeliest categories whose sum is at most ps, the last one for the rest") {
  const Tensor x = expand(Tensor::from_data<double>({0.1, 0.4, 0, 0.2, 0.3}, {1, 5}), {kCount, 5});
  const auto draw = [&](double ps, const Tensor& threshold) {
    return numbers([&] { return std::get<1>(top_p_sampling(x, full({kCount, 1}, ps, DType::float64), threshold)); });
  };
  // In order: 1, 4, 3, 0. Of ps = 0.8 the third has 0.1.
  const std::vector<double> expected = {0, 0.4 / 0.8, 0, 0.1 / 0.8, 0.3 / 0.8};
  check_frequencies(
      draw(0.8, {}), [&](int k) { return expected[static_cast<size_t>(k)]; }, 4);
  const std::vector<double> all = {0.1, 0.4, 0, 0.2, 0.3};
  check_frequencies(
      draw(1, {}), [&](int k) { return all[static_cast<size_t>(k)]; }, 4);
  check_frequencies(
      draw(7, {}), [&](int k) { return all[static_cast<size_t>(k)]; }, 4);
  // Categories below a threshold become the last one that is not.
  const std::vector<double> likely = {0, 0.4, 0, 0, 0.6};
  check_frequencies(
      draw(1, full({kCount}, 0.25, DType::float64)), [&](int k) { return likely[static_cast<size_t>(k)]; }, 4);
  CHECK(draw(1, full({kCount}, 2.0, DType::float64)) == std::vector<double>(kCount, 1));
  CHECK(draw(0, {}) == std::vector<double>(kCount, 1));
  const auto [out, ids] = top_p_sampling(x, full({kCount}, 0.8, DType::float64), {}, 5);
  CHECK(out.to_vector<double>() == take_along_axis(x, ids, 1).to_vector<double>());
  CHECK(ids.to_vector<int64_t>() ==
        std::get<1>(top_p_sampling(x, full({kCount}, 0.8, DType::float64), {}, 5)).to_vector<int64_t>());
  // Of equal ones the first.
  CHECK(item(std::get<1>(top_p_sampling(full({1, 3}, 0.5), zeros({1}), {}))).to<int64_t>() == 0);
}

TEST_CASE("distributions: 16-bit dtypes and empty tensors") {
  for (const DType dtype : dtypes_of(FloatTypes{})) {
    CHECK(poisson(full({3}, 2.0, dtype)).dtype() == dtype);
    CHECK(binomial(full({3}, 8.0, dtype), full({3}, 0.5, dtype)).dtype() == DType::int64);
    CHECK(standard_gamma(full({0, 3}, 2.0, dtype)).dims() == Dims{0, 3});
    CHECK(dirichlet(full({3, 0}, 2.0, dtype)).dims() == Dims{3, 0});
    CHECK(multinomial(full({0, 3}, 1.0, dtype), 2).dims() == Dims{0, 2});
    CHECK(std::get<0>(top_p_sampling(full({0, 3}, 1.0, dtype), full({0, 1}, 1.0, dtype), {})).dims() == Dims{0, 1});
    CHECK(std::get<0>(top_p_sampling(full({2, 3}, 0.25, dtype), full({2}, 1.0, dtype), {})).dtype() == dtype);
    CHECK(poisson(full({}, 2.0, dtype)).dims().rank() == 0);
  }
}

TEST_CASE("distributions: the gradient of poisson is 0") {
  Tensor x = full({4}, 2.5, DType::float64);
  x.set_requires_grad(true);
  sum(poisson(x)).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>(4));
}

TEST_CASE("distributions: bad parameters are refused") {
  const Tensor ones = full({2, 3}, 1.0);
  error_of([] { poisson(full({2}, -1.0)); }, ErrorCode::invalid_argument);
  error_of([] { poisson(full({2}, NAN)); }, ErrorCode::invalid_argument);
  error_of([] { standard_gamma(full({2}, INFINITY)); }, ErrorCode::invalid_argument);
  error_of([] { dirichlet(full({2}, 0.0)); }, ErrorCode::invalid_argument);
  error_of([] { dirichlet(full({}, 1.0)); }, ErrorCode::shape_mismatch);
  error_of([&] { binomial(full({2, 3}, 2.5), ones); }, ErrorCode::invalid_argument);
  error_of([&] { binomial(ones, full({2, 3}, 1.5)); }, ErrorCode::invalid_argument);
  error_of([&] { binomial(ones, full({3}, 0.5)); }, ErrorCode::shape_mismatch);
  error_of([&] { binomial(full({2, 3}, 1, DType::int64), ones); }, ErrorCode::dtype_mismatch);
  error_of([&] { multinomial(ones, 0); }, ErrorCode::invalid_argument);
  error_of([&] { multinomial(ones, 4, false); }, ErrorCode::invalid_argument);
  error_of([] { multinomial(full({2, 3}, 0.0), 1, true); }, ErrorCode::invalid_argument);
  error_of([] { multinomial(full({3}, -1.0), 1, true); }, ErrorCode::invalid_argument);
  error_of([] { multinomial(full({2, 2, 2}, 1.0), 1, true); }, ErrorCode::shape_mismatch);
  const Tensor row = full({2}, 1.0);
  error_of([&] { top_p_sampling(full({2, 3}, -1.0), row, {}); }, ErrorCode::invalid_argument);
  error_of([&] { top_p_sampling(full({2, 3}, INFINITY), row, {}); }, ErrorCode::invalid_argument);
  error_of([&] { top_p_sampling(full({2, 3}, 0.0), row, {}); }, ErrorCode::invalid_argument);
  error_of([&] { top_p_sampling(ones, full({2}, NAN), {}); }, ErrorCode::invalid_argument);
  error_of([&] { top_p_sampling(ones, row, full({2}, NAN)); }, ErrorCode::invalid_argument);
  error_of([&] { top_p_sampling(ones, full({3}, 1.0), {}); }, ErrorCode::shape_mismatch);
  error_of([&] { top_p_sampling(ones, row, full({1, 2}, 1.0)); }, ErrorCode::shape_mismatch);
  error_of([&] { top_p_sampling(row, row, {}); }, ErrorCode::shape_mismatch);
  error_of([&] { top_p_sampling(zeros({2, 0}), row, {}); }, ErrorCode::shape_mismatch);
  error_of([&] { top_p_sampling(ones, full({2}, 1.0, DType::float64), {}); }, ErrorCode::dtype_mismatch);
  error_of([&] { top_p_sampling(full({2, 3}, 1, DType::int64), row, {}); }, ErrorCode::dtype_mismatch);
  error_of([] { truncated_gaussian_random({2}, 0.0f, -1.0f); }, ErrorCode::invalid_argument);
  error_of([] { truncated_gaussian_random({2}, 0.0f, 1.0f, 0, DType::int32); }, ErrorCode::dtype_mismatch);
}

}  // namespace distributions_test
