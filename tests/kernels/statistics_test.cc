// logsumexp, var, std, p_norm, l1_norm and norm against plain references in double, and at the ends of their ranges.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::testing::statistics_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

using Numbers = std::vector<double>;
using Reference = std::function<double(const Numbers&)>;

double norm_of(const Numbers& x, double order) {
  double total = order == -kInfinity ? kInfinity : 0;
  for (const double each : x) {
    const double size = std::abs(each);
    if (order == kInfinity) total = std::max(total, size);
    else if (order == -kInfinity) total = std::min(total, size);
    else if (order == 0) total += size != 0 ? 1 : 0;
    else total += std::pow(size, order);
  }
  return order == 0 || std::isinf(order) ? total : std::pow(total, 1 / order);
}

double variance_of(const Numbers& x, bool unbiased) {
  double sum = 0, squares = 0;
  for (const double each : x) sum += each;
  const double count = static_cast<double>(x.size()), mean = sum / count;
  for (const double each : x) squares += (each - mean) * (each - mean);
  return squares / (unbiased ? std::max(count - 1, 1.0) : count);
}

double logsumexp_of(const Numbers& x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double each : x) sum += std::exp(each - largest);
  return std::log(sum) + largest;
}

/// The elements of x that each result of a reduction over `axis` (all dims where it is empty) is made of.
std::vector<Numbers> groups_of(const Tensor& x, const IntArray& axis) {
  const Dims& dims = x.dims();
  const auto is_reduced = [&](int d) {
    return axis.empty() ||
           std::any_of(axis.begin(), axis.end(), [&](int64_t a) { return a == d || a + dims.rank() == d; });
  };
  const auto values = cast(x, DType::float64).to_vector<double>();
  std::vector<Numbers> groups;
  for (size_t i = 0; i < values.size(); ++i) {
    size_t rest = i, place = 0, step = 1;
    for (int d = dims.rank() - 1; d >= 0; --d) {
      const auto size = static_cast<size_t>(dims[d]);
      if (!is_reduced(d)) {
        place += rest % size * step;
        step *= size;
      }
      rest /= size;
    }
    groups.resize(std::max(groups.size(), place + 1));
    groups[place].push_back(values[i]);
  }
  return groups;
}

struct Case {
  Dims dims;
  IntArray axis;
};
const Case kCases[] = {{{7}, {0}},         {{3, 5}, {0}},     {{3, 5}, {1}},     {{2, 3, 4}, {0, 2}},
                       {{2, 3, 4}, {1}},   {{130, 70}, {0}},  {{70, 130}, {1}},  {{33000}, {0}},
                       {{1200, 3}, {0}},   {{2, 9000}, {-1}}, {{40, 1030}, {0}}, {{3, 70, 33}, {1}},
                       {{3, 70, 33}, {2}}, {{1, 6, 1}, {1}}};

}  // namespace

TEST_CASE("statistics over any axes are those of plain loops in double") {
  struct Op {
    std::string name;
    std::function<Tensor(const Tensor&, const IntArray&)> run;
    Reference reference;
    bool one_axis = false, fits_float16 = true;
  };
  std::vector<Op> ops = {
      {"logsumexp", [](const Tensor& x, const IntArray& axis) { return logsumexp(x, axis, false, false); },
       logsumexp_of},
      {"var", [](const Tensor& x, const IntArray& axis) { return var(x, axis); },
       [](const Numbers& x) { return variance_of(x, true); }},
      {"std", [](const Tensor& x, const IntArray& axis) { return std_op(x, axis, false); },
       [](const Numbers& x) { return std::sqrt(variance_of(x, false)); }}};
  for (const double order : {0.0, 1.0, 2.0, 3.0, 17.0, 0.5, 2.5, -1.5, kInfinity, -kInfinity}) {
    ops.push_back({"p_norm of order " + std::to_string(order),
                   [order](const Tensor& x, const IntArray& axis) {
                     return p_norm(x, static_cast<float>(order), static_cast<int>(axis[0]));
                   },
                   [order](const Numbers& x) { return norm_of(x, order); }, true,
                   order == 0 || order >= 1 || std::isinf(order)});
  }
  for (const DType dtype : kFloatDTypes) {
    for (const auto& [dims, axis] : kCases) {
      const Tensor x = cast(uniform(dims, DType::float64, -3, 3, 5), dtype);
      const std::vector<Numbers> groups = groups_of(x, axis);
      for (const Op& op : ops) {
        if ((op.one_axis && axis.size() > 1) || (!op.fits_float16 && dtype == DType::float16)) continue;
        INFO(op.name << " over " << to_string(axis) << " of " << to_string(dims) << " in " << to_string(dtype));
        const double precision = dtype == DType::float64   ? 1e-12
                                 : dtype == DType::float32 ? 4e-6
                                 : dtype == DType::float16 ? 1e-3
                                                           : 8e-3;
        const Numbers got = cast(op.run(x, axis), DType::float64).to_vector<double>();
        REQUIRE(got.size() == groups.size());
        double worst = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          const double expected = op.reference(groups[i]);
          const double error = std::abs(got[i] - expected) / std::max(std::abs(expected), 1e-30);
          if (!(error <= worst)) worst = error;  // NaN too
        }
        CHECK(worst <= precision);
      }
    }
  }
}

TEST_CASE("statistics at the ends of their ranges") {
  const auto of = [](const Numbers& numbers, DType dtype) {
    return cast(Tensor::from_data(numbers, {static_cast<int64_t>(numbers.size())}), dtype);
  };
  const auto one = [](const Tensor& x) { return cast(x, DType::float64).to_vector<double>()[0]; };
  for (const DType dtype : kFloatDTypes) {
    INFO(to_string(dtype));
    const auto sum_of_exponentials = [&](const Numbers& x) { return one(logsumexp(of(x, dtype), {}, false, true)); };
    CHECK(sum_of_exponentials({1000, 1000}) == Approx(1000 + std::log(2.0)).epsilon(8e-3));
    CHECK(sum_of_exponentials({-kInfinity, 3, -kInfinity}) == 3);
    CHECK(sum_of_exponentials({-kInfinity, -kInfinity}) == -kInfinity);
    CHECK(sum_of_exponentials({kInfinity, 3, kInfinity}) == kInfinity);
    CHECK(std::isnan(sum_of_exponentials({kNan, kInfinity})));
    CHECK(std::isnan(sum_of_exponentials({5, kNan, 3})));
    CHECK(one(var(of({5}, dtype), {}, true)) == 0);
    CHECK(std::isnan(one(var(of({}, dtype), {}, true))));
    CHECK(std::isnan(one(std_op(of({1, kInfinity}, dtype), {}, true))));
    CHECK(one(p_norm(of({0, -0.0}, dtype), HUGE_VALF)) == 0);
    CHECK_FALSE(std::signbit(one(p_norm(of({-0.0}, dtype), HUGE_VALF))));
    CHECK(std::isnan(one(p_norm(of({1, kNan, 2}, dtype), HUGE_VALF))));
    CHECK(std::isnan(one(p_norm(of({1, kNan, 2}, dtype), -HUGE_VALF))));
    CHECK(one(p_norm(of({0, kNan, 2}, dtype), 0)) == 2);
    CHECK(one(p_norm(of({}, dtype), 3)) == 0);
    CHECK(one(p_norm(of({}, dtype), -2)) == kInfinity);
    CHECK(one(p_norm(of({kInfinity, kInfinity}, dtype), -2)) == kInfinity);
    Numbers zeros(40, 1);
    zeros[3] = 0;
    zeros[11] = -0.0;
    CHECK(one(p_norm(of(zeros, dtype), -1)) == 0);
    CHECK(one(p_norm(of({0, 2}, dtype), -2)) == 0);
    CHECK_THROWS_WITH(p_norm(of({}, dtype), HUGE_VALF), Catch::Contains("undefined"));
    CHECK_THROWS_WITH(logsumexp(of({}, dtype), {}, false, true), Catch::Contains("undefined"));
  }
  // Squares beyond the range of 16 bits, and a mean that is large beside the distances from it.
  CHECK(one(p_norm(of({3000, 4000}, DType::float16), 2)) == 5000);
  CHECK(one(std::get<1>(norm(of({3000, 4000}, DType::float16), 0, 0))) == 5000);
  CHECK(one(var(of({10001, 10002, 10003, 10004}, DType::float32), {}, false)) == Approx(1.25).epsilon(1e-6));
  CHECK(one(l1_norm(of({-3, 4, -0.5}, DType::float32))) == 7.5);
  CHECK_THROWS_WITH(var(Tensor::from_data(std::vector<int32_t>{1}, {1})), Catch::Contains("[var]"));
}

TEST_CASE("gradients of statistics where they are not smooth") {
  using In = Tensor;
  const auto gradient = [](const Numbers& numbers, const std::function<Tensor(const In&)>& f) {
    Tensor x = Tensor::from_data(numbers, {static_cast<int64_t>(numbers.size())}).set_requires_grad(true);
    f(x).backward();
    return x.grad().to_vector<double>();
  };
  CHECK(gradient({-kInfinity, -kInfinity}, [](const In& x) { return logsumexp(x, {0}, false, false); }) ==
        Numbers{0, 0});
  CHECK(gradient({-kInfinity, 3}, [](const In& x) { return logsumexp(x, {0}, false, false); }) == Numbers{0, 1});
  CHECK(gradient({4, 4}, [](const In& x) { return std_op(x); }) == Numbers{0, 0});
  CHECK(gradient({0, 0}, [](const In& x) { return p_norm(x, 2); }) == Numbers{0, 0});
  CHECK(gradient({0, 2}, [](const In& x) { return p_norm(x, 0.5f); }) == Numbers{0, 1});
  CHECK(gradient({0, 2}, [](const In& x) { return p_norm(x, -2); }) == Numbers{0, 0});
  CHECK(gradient({0, 1, 5}, [](const In& x) { return p_norm(x, -HUGE_VALF); }) == Numbers{0, 0, 0});
  CHECK(gradient({-1, 4, 5}, [](const In& x) { return p_norm(x, -HUGE_VALF); }) == Numbers{-1, 0, 0});
  CHECK(gradient({-2, 1, 2}, [](const In& x) { return p_norm(x, HUGE_VALF); }) == Numbers{-1, 0, 1});
  CHECK(gradient({-2, 0, 3}, [](const In& x) { return l1_norm(x); }) == Numbers{-1, 0, 1});
}

TEST_CASE("logsumexp has the same bits whether columns fill packs or not") {
  for (const double bound : {1.0, 110.0}) {
    const Tensor x = uniform({2, 64}, DType::float32, -bound, bound, 5);
    const auto packs = logsumexp(x, {0}, false, false).to_vector<float>();
    for (int64_t column = 0; column < 64; ++column) {
      const Tensor alone = slice(x, {1}, {column}, {column + 1});
      CHECK(logsumexp(alone, {0}, false, false).to_vector<float>()[0] == packs[static_cast<size_t>(column)]);
    }
  }
}

TEST_CASE("statistics of distributed tensors without dims") {
  World::local(2)->run([](Rank&) {
    const Tensor x = distribute(Tensor::from_data(std::vector<double>{-3}, {}),
                                DistSpec::parse(ProcessMesh::make({2}, {}, {"a"}), ""));
    const auto one = [](const Tensor& of) { return full_tensor(of).to_vector<double>()[0]; };
    test::check(one(logsumexp(x, {0}, false, false)) == -3, "logsumexp");
    test::check(std::abs(one(p_norm(x, 3, -1)) - 3) < 1e-12, "p_norm");
    test::check(one(frobenius_norm(x, {-1}, false, false)) == 3, "frobenius_norm");
    test::check(one(std::get<1>(norm(x, 0, 0))) == 3, "norm");
  });
  CHECK_THROWS_WITH(norm(Tensor::from_data(std::vector<double>{-3}, {}), 5), Catch::Contains("axis"));
}

}  // namespace shard::testing::statistics_test
