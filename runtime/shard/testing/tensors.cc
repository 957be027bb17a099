// Makes and compares tensors for tests.
#include "shard/testing/tensors.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

namespace shard::testing {
namespace {

double value_at(const DenseTensor& tensor, int64_t i) {
  return visit_dtype(tensor.dtype(), [&]<class T>(TypeTag<T>) { return static_cast<double>(tensor.data<T>()[i]); });
}

/// How far an element may be off, by its own size: one that is rounded to 16 bits at the end by two of those roundings. What it is computed from
/// is about 1, of which some roundings of the dtype that it is computed in may be left over where terms cancel. Integers are exact.
double tolerance(DType dtype, double expected) {
  const double computed = 84 * epsilon_of(compute_dtype(dtype));
  const double rounded = compute_dtype(dtype) == dtype ? computed : 2.05 * epsilon_of(dtype);
  return computed + rounded * std::abs(expected);
}

bool close(DType dtype, double actual, double expected) {
  if (std::isnan(actual) && std::isnan(expected)) return true;
  return actual == expected || std::abs(actual - expected) <= tolerance(dtype, expected);
}

}  // namespace

DenseTensor random_tensor(const Dims& dims, DType dtype, unsigned seed) {
  DenseTensor tensor = DenseTensor::allocate(kCpu, {dims, dtype});
  std::mt19937 bits(seed);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const uint32_t draw = bits();
      if constexpr (std::is_same_v<T, bool>) tensor.data<T>()[i] = draw % 2 != 0;
      else if constexpr (std::is_integral_v<T>) tensor.data<T>()[i] = static_cast<T>(draw % 4);
      else tensor.data<T>()[i] = static_cast<T>(0.25f * static_cast<float>(static_cast<int>(draw % 17) - 8));
    }
  });
  return tensor;
}

DenseTensor copy_to(Device device, const DenseTensor& tensor) {
  DenseTensor copy = DenseTensor::allocate(device, tensor.meta());
  copy_into(copy, tensor);
  return copy;
}

std::string difference(const DenseTensor& actual, const DenseTensor& expected) {
  if (!(actual.meta() == expected.meta())) {
    return fmt::format("the result is {}, expected {}", to_string(actual.meta()), to_string(expected.meta()));
  }
  const DenseTensor a = copy_to(kCpu, actual);
  const DenseTensor e = copy_to(kCpu, expected);
  int64_t wrong = 0, first = 0;
  for (int64_t i = 0; i < e.numel(); ++i) {
    if (close(e.dtype(), value_at(a, i), value_at(e, i))) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements differ; element {} is {}, expected {}", wrong, e.numel(), first,
                     value_at(a, first), value_at(e, first));
}

}  // namespace shard::testing
