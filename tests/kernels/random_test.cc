// Random kernels: any split computes the bits of the whole, and the numbers have the right distribution.
#include <algorithm>

#include "kernels/kernel_testing.h"

namespace shard::testing::random_test {
namespace {

using Uniform = void(const OpContext&, const Scalar&, const Scalar&, int, RandomKey, DenseTensor&);
using Gaussian = void(const OpContext&, float, float, int, RandomKey, DenseTensor&);
using Dropout = void(const OpContext&, const DenseTensor&, const DenseTensor&, const Scalar&, bool, const std::string&,
                     int, bool, RandomKey, DenseTensor&, DenseTensor&);
constexpr RandomKey kKey{42, 7};

/// Compares each [2, 3]-shard of a [4, 9] tensor with the whole.
template <class Fill>
void check_shards(DType dtype, const Fill& fill) {
  const Dims dims{4, 9};
  DenseTensor whole = uninitialized(dims, dtype);
  fill(OpContext{"random"}, whole);
  const std::vector<double> expected = values(whole);
  for (int64_t row : {0, 2}) {
    for (int64_t column : {0, 3, 6}) {
      const Box box[] = {{dims, {row, column}}};
      const LocalCall local{box, box, nullptr, {}};
      DenseTensor shard = uninitialized({2, 3}, dtype);
      fill(OpContext{"random", &local}, shard);
      for (int64_t i = 0; i < 6; ++i) {
        CHECK(values(shard)[static_cast<size_t>(i)] ==
              expected[static_cast<size_t>((row + i / 3) * 9 + column + i % 3)]);
      }
    }
  }
}

TEST_CASE("uniform and gaussian give the same bits for every split") {
  for (const DType dtype : kFloatDTypes) {
    check_shards(dtype, [&](const OpContext& ctx, DenseTensor& out) {
      call_in<Uniform>(ctx, "uniform", dtype, Scalar(-1), Scalar(1), 0, kKey, out);
    });
    check_shards(dtype, [&](const OpContext& ctx, DenseTensor& out) {
      call_in<Gaussian>(ctx, "gaussian", dtype, 0.0f, 1.0f, 0, kKey, out);
    });
    check_shards(dtype, [&](const OpContext& ctx, DenseTensor& out) {
      DenseTensor mask = uninitialized(out.dims(), DType::uint8);
      const DenseTensor ones = tensor(std::vector<double>(static_cast<size_t>(out.numel()), 1), out.dims(), dtype);
      call_in<Dropout>(ctx, "dropout", dtype, ones, DenseTensor(), Scalar(0.5), false, "upscale_in_train", 0, false,
                       kKey, out, mask);
    });
  }
}

TEST_CASE("uniform and gaussian numbers are those of Philox at the index in the whole tensor") {
  // Runs that begin in the middle of a block of four words, and indices beyond 2^32 blocks.
  for (const int64_t begin : {int64_t{0}, int64_t{3}, (int64_t{1} << 34) - 301}) {
    constexpr int64_t kCount = 1003;
    const Box box[] = {{{int64_t{1} << 36}, {begin}}};
    const LocalCall local{box, box, nullptr, {}};
    const OpContext ctx{"random", &local};
    DenseTensor out = uninitialized({kCount}, DType::float32);
    call_in<Uniform>(ctx, "uniform", DType::float32, Scalar(0), Scalar(1), 0, kKey, out);
    for (int64_t i = 0; i < kCount; ++i)
      REQUIRE(out.data<float>()[i] == uniform01(random_word(kKey, static_cast<uint64_t>(begin + i))));
    call_in<Gaussian>(ctx, "gaussian", DType::float32, 0.0f, 1.0f, 0, kKey, out);
    for (int64_t i = 0; i < kCount; ++i) {
      const auto at = 2 * static_cast<uint64_t>(begin + i);
      const double radius = std::sqrt(-2 * std::log(1 - double{uniform01(random_word(kKey, at))}));
      const double expected = radius * std::cos(2 * M_PI * double{uniform01(random_word(kKey, at + 1))});
      REQUIRE(std::abs(double{out.data<float>()[i]} - expected) <= 2.5e-7 * radius);
    }
  }
}

TEST_CASE("narrow tensors and shards of inner dims have the numbers of the whole") {
  const Dims whole{7, 5, 3, 2};
  DenseTensor all = uninitialized(whole, DType::float32);
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 0, kKey, all);
  const std::vector<double> expected = values(all);
  for (int64_t i = 0; i < all.numel(); ++i)
    REQUIRE(all.data<float>()[i] == uniform01(random_word(kKey, static_cast<uint64_t>(i))));
  const Box box[] = {{whole, {2, 1, 0, 0}}};
  const LocalCall local{box, box, nullptr, {}};
  DenseTensor shard = uninitialized({4, 3, 3, 2}, DType::float32);
  call_in<Uniform>(OpContext{"random", &local}, "uniform", DType::float32, Scalar(0), Scalar(1), 0, kKey, shard);
  const std::vector<double> got = values(shard);
  for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == expected[(2 + i / 18) * 30 + (1 + i / 6 % 3) * 6 + i % 6]);
}

TEST_CASE("random numbers have the distribution that was asked for") {
  DenseTensor out = uninitialized({100001}, DType::float32);
  call<Uniform>("uniform", DType::float32, Scalar(2), Scalar(4), 0, kKey, out);
  double sum = 0, squares = 0;
  for (double value : values(out)) {
    REQUIRE(value >= 2);
    REQUIRE(value < 4);
    sum += value;
  }
  CHECK(sum / 100001 == Approx(3).epsilon(0.01));
  call<Gaussian>("gaussian", DType::float32, 1.0f, 2.0f, 0, kKey, out);
  sum = 0;
  for (double value : values(out)) {
    sum += value;
    squares += (value - 1) * (value - 1);
  }
  CHECK(sum / 100001 == Approx(1).epsilon(0.03));
  CHECK(squares / 100001 == Approx(4).epsilon(0.03));
}

/// Pearson's statistic of counts whose expectation is the same for all.
double chi_squared(const std::vector<int>& counts, double expected) {
  double chi = 0;
  for (const int count : counts) chi += (count - expected) * (count - expected) / expected;
  return chi;
}
/// Five standard deviations of a chi-squared distribution about its mean.
void check_chi_squared(double chi, double freedom) {
  INFO("chi2 " << chi << " with " << freedom << " degrees of freedom");
  CHECK(std::abs(chi - freedom) < 5 * std::sqrt(2 * freedom) + 10);
}

using Randperm = void(const OpContext&, RandomKey, DenseTensor&);

TEST_CASE("every permutation of 2 to 8 numbers is equally likely") {
  uint64_t offset = 0;
  size_t orders = 1;
  for (int n = 2; n <= 8; ++n) {
    orders *= static_cast<size_t>(n);
    const size_t draws = std::max<size_t>(8 * orders, 20000);
    std::vector<int> counts(orders);
    DenseTensor out = uninitialized({n}, DType::int32);
    for (size_t draw = 0; draw < draws; ++draw) {
      call<Randperm>("randperm", DType::int32, RandomKey{3, offset++}, out);
      size_t rank = 0;  // Lehmer's code of the order
      for (int i = 0; i < n; ++i) {
        size_t smaller = 0;
        for (int j = i + 1; j < n; ++j) smaller += out.data<int32_t>()[j] < out.data<int32_t>()[i];
        rank = rank * static_cast<size_t>(n - i) + smaller;
      }
      ++counts[rank];
    }
    INFO("n " << n);
    check_chi_squared(chi_squared(counts, static_cast<double>(draws) / static_cast<double>(orders)),
                      static_cast<double>(orders - 1));
  }
}

TEST_CASE("large permutations have as many fixed points, and neighbours as far apart, as all permutations on average",
          "[slow_in_asan]") {
  for (const int n : {4096, 4097, 6000}) {
    constexpr int kDraws = 400;
    constexpr int kBins = 16;
    DenseTensor out = uninitialized({n}, DType::int32);
    int fixed = 0;
    std::vector<int> steps(kBins);
    for (int draw = 0; draw < kDraws; ++draw) {
      call<Randperm>("randperm", DType::int32, RandomKey{5, static_cast<uint64_t>(draw)}, out);
      const int32_t* order = out.data<int32_t>();
      for (int i = 0; i < n; ++i) fixed += order[i] == i;
      for (const int i : {0, 1000, 2000})
        ++steps[static_cast<size_t>(((order[i + 1] - order[i] + n) % n) * int64_t{kBins} / n)];
    }
    INFO("n " << n);
    CHECK(std::abs(fixed - kDraws) < 5 * std::sqrt(kDraws));  // a Poisson distribution of mean 1 in each
    check_chi_squared(chi_squared(steps, 3.0 * kDraws / kBins), kBins - 1);
  }
}

TEST_CASE("uniform and gaussian of float64 have 53 random bits", "[slow_in_asan]") {
  DenseTensor out = uninitialized({4096}, DType::float64);
  call<Uniform>("uniform", DType::float64, Scalar(0), Scalar(1), 0, kKey, out);
  std::vector<int> ones(53);
  for (const double value : values(out)) {
    const auto bits = static_cast<uint64_t>(std::ldexp(value, 53));
    REQUIRE(std::ldexp(static_cast<double>(bits), -53) == value);
    for (size_t i = 0; i < 53; ++i) ones[i] += bits >> i & 1u;
  }
  for (const int count : ones) CHECK(std::abs(count - 2048) < 5 * 32);
  std::vector<double> numbers = values(out);
  std::sort(numbers.begin(), numbers.end());
  CHECK(std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end());
  // Of 32 bits four million numbers would have about two thousand pairs.
  constexpr int64_t kMany = 1 << 22;
  DenseTensor many = uninitialized({kMany}, DType::float64);
  call<Gaussian>("gaussian", DType::float64, 0.0f, 1.0f, 0, kKey, many);
  double* const first = many.data<double>();
  std::sort(first, first + kMany);
  CHECK(std::adjacent_find(first, first + kMany) == first + kMany);
}

TEST_CASE("uniform covers a range that is larger than the largest number") {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    const double most = dtype == DType::float64 ? 1.7e308 : 3e38;
    DenseTensor out = uninitialized({10000}, dtype);
    call<Uniform>("uniform", dtype, Scalar(-most), Scalar(most), 0, kKey, out);
    std::vector<int> bins(10);
    for (const double value : values(out)) {
      REQUIRE(std::abs(value) <= most * 1.01);
      ++bins[static_cast<size_t>(std::clamp(5 + 5 * (value / most), 0.0, 9.0))];
    }
    check_chi_squared(chi_squared(bins, 1000), 9);
  }
}

TEST_CASE("bernoulli of float64 knows probabilities below 2^-32", "[slow_in_asan]") {
  using Bernoulli = void(const OpContext&, const DenseTensor&, RandomKey, DenseTensor&);
  constexpr int64_t kMany = 1 << 20;
  const DenseTensor p = tensor(std::vector<double>(kMany, 1e-300), {kMany}, DType::float64);
  DenseTensor out = uninitialized({kMany}, DType::float64);
  double sum = 0;
  for (uint64_t draw = 0; draw < 4; ++draw) {
    call<Bernoulli>("bernoulli", DType::float64, p, RandomKey{1, draw}, out);
    for (const double value : values(out)) sum += value;
  }
  CHECK(sum == 0);
}

TEST_CASE("a seed gives the same numbers whatever key is drawn") {
  DenseTensor a = uninitialized({8}, DType::float32), b = uninitialized({8}, DType::float32);
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 5, RandomKey{1, 1}, a);
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 5, RandomKey{2, 9}, b);
  CHECK(values(a) == values(b));
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 0, RandomKey{2, 9}, b);
  CHECK(values(a) != values(b));
}

TEST_CASE("dropout keeps 1 - p of the elements and scales by mode") {
  const DenseTensor x = tensor(std::vector<double>(20000, 1), {20000}), absent;
  DenseTensor out = uninitialized({20000}, DType::float32), mask = uninitialized({20000}, DType::uint8);
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(0.75), false, "upscale_in_train", 0, false, kKey, out,
                mask);
  double kept = 0;
  for (size_t i = 0; i < 20000; ++i) {
    kept += mask.data<uint8_t>()[i];
    REQUIRE(out.data<float>()[i] == (mask.data<uint8_t>()[i] ? 4.0f : 0.0f));
  }
  CHECK(kept / 20000 == Approx(0.25).epsilon(0.1));
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(0.75), true, "downscale_in_infer", 0, false, kKey, out,
                mask);
  CHECK(out.data<float>()[7] == 0.25f);
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(1.0), false, "upscale_in_train", 0, false, kKey, out,
                mask);
  CHECK(values(out) == std::vector<double>(20000, 0));
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(0), false, "upscale_in_train", 0, false, kKey, out, mask);
  CHECK(values(out) == std::vector<double>(20000, 1));
}

}  // namespace
}  // namespace shard::testing::random_test
