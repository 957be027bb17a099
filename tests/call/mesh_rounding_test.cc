// How far a sum over ranks may be from that of one rank: the bounds that docs/sharding.md gives.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include "api.h"
#include "reshard/execute.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

namespace {

constexpr int64_t kRanks = 4;
constexpr int64_t kCount = 1000;

/// Numbers of this dtype whose sums over quarters are large and cancel.
Tensor cancelling(DType dtype) {
  std::mt19937 engine(7);
  std::vector<float> numbers(kCount);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(engine() % 2001) / 1000.0f - 1.0f + (i < kCount / 2 ? 1.0f : -1.0f);
  return cast(Tensor::from_data(numbers, {kCount}), dtype);
}

double total(const std::vector<double>& numbers, size_t begin, size_t end) {
  long double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += numbers[i];
  return static_cast<double>(sum);
}

}  // namespace

TEST_CASE("a sum over ranks is within the documented bound of the exact one, and in float32 within one rounding") {
  const std::pair<DType, double> dtypes[] = {{DType::bfloat16, 0x1p-8}, {DType::float16, 0x1p-11}};
  for (const auto& [dtype, unit] : dtypes) {
    const Tensor x = cancelling(dtype);
    const std::vector<double> numbers = cast(x, DType::float64).to_vector<double>();
    const double exact = total(numbers, 0, numbers.size());
    double parts = 0;
    for (size_t r = 0; r < kRanks; ++r) parts += std::abs(total(numbers, r * kCount / kRanks, (r + 1) * kCount / kRanks));
    run_ranks(static_cast<int>(kRanks), [&, dtype = dtype, unit = unit](Rank&) {
      const Tensor sharded = distribute(x, DistSpec::parse(ProcessMesh::make({static_cast<int>(kRanks)}), "a"));
      const auto value = [](const Tensor& sum) { return cast(full(sum), DType::float64).to_vector<double>()[0]; };
      const double direct = value(sum(sharded));
      // The kernel and the reduction add in float, which the factor is for.
      check(std::abs(direct - exact) <= 1.001 * unit * (parts + std::abs(direct)), "the sum of rounded parts is within its bound");
      const double wide = value(cast(sum(cast(sharded, DType::float32)), dtype));
      check(std::abs(wide - exact) <= 1.001 * unit * std::abs(exact) + 1e-5 * parts, "a sum in float32 is rounded once");
    });
  }
}
