// The gradients of every op that has kernels for CUDA, on a device: those of the CPU, also of in-place forms, and the
// gradients of gradients. The calls are those of table_test.cc, in all floating dtypes.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "gradients/table.h"
#include "shard/shard.h"
#include "shard/testing/tensors.h"
#include "support/cuda_device.h"
#include "support/sanitized.h"

namespace shard::test::cuda_test {
namespace {

using testing::copy_to;

/// A call with the values of its inputs and of the gradients of its outputs, all on the CPU.
struct Trial {
  const TableCase& one;
  CaseCall call;
  std::vector<DenseTensor> values, out_grads;
};

Tensors moved(Device device, const std::vector<DenseTensor>& values) {
  Tensors tensors;
  for (const DenseTensor& value : values) tensors.emplace_back(copy_to(device, value));
  return tensors;
}

/// The gradients of the trial's call on a device.
using Differentiate = std::function<Tensors(const Trial& trial, Device device)>;

Tensors first_on(const Trial& trial, Device device) {
  const Tensors leaves = leaves_of(trial.one, moved(device, trial.values));
  return gradients(run(trial.one, trial.call, leaves), leaves, moved(device, trial.out_grads));
}

Tensors second_on(const Trial& trial, Device device) {
  return second_gradients(trial.one, trial.call, leaves_of(trial.one, moved(device, trial.values)),
                          moved(device, trial.out_grads), [=](const Tensor& x) { return x.to(device); });
}

/// Roundings, of the largest element: of sums in another order, of functions of another library, and of what is computed from
/// them. Numbers of 16 bits are computed in float32 and rounded after each op.
std::string difference(const Tensors& actual, const Tensors& expected, Device device, double ulps) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i].defined() != expected[i].defined())
      return fmt::format("gradient {} is {}", i, actual[i].defined() ? "there" : "absent");
    if (!actual[i].defined()) continue;
    if (actual[i].device() != device) return fmt::format("gradient {} is on {}", i, to_string(actual[i].device()));
    const std::string problem =
        testing::value_difference(copy_to(kCpu, actual[i].get().value), expected[i].get().value, ulps);
    if (!problem.empty()) return fmt::format("gradient {}: {}", i, problem);
  }
  return "";
}

Trial trial_of(const TableCase& one, DType dtype, const std::vector<int64_t>& sizes) {
  Random random(one.seed());
  Trial trial{one, one.call(sizes, dtype), {}, {}};
  trial.values = draw_values(one, trial.call, random);
  trial.out_grads = draw_out_grads(run(one, trial.call, leaves_of(one, tensors_of(trial.values))), random);
  return trial;
}

/// A trial and its gradients on the CPU; nothing where its ops or their arguments cannot have the dtype.
std::optional<std::pair<Trial, Tensors>> expected_of(const TableCase& one, DType dtype,
                                                     const std::vector<int64_t>& sizes,
                                                     const Differentiate& differentiate) {
  try {
    const Trial trial = trial_of(one, dtype, sizes);
    return std::pair(trial, differentiate(trial, kCpu));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::no_kernel && error.code() != ErrorCode::dtype_mismatch) throw;
    return std::nullopt;
  }
}

/// A copy of a tensor on the CPU in which the last bit of each other float of 32 or 64 bits is another one.
DenseTensor with_other_last_bits(const DenseTensor& x) {
  const DenseTensor copy = copy_to(kCpu, x);
  const auto change = [&]<class T>(T* values) {
    for (int64_t i = 0; i < copy.numel(); i += 2) {
      if (values[i] != 0) values[i] = std::nextafter(values[i], T(0));
    }
  };
  if (copy.dtype() == DType::float64) change(static_cast<double*>(copy.raw()));
  if (copy.dtype() == DType::float32) change(static_cast<float*>(copy.raw()));
  return copy;
}

/// How many roundings gradients on the CPU change by with the last bits of the inputs, to a power of two. Singular vectors of nearly equal
/// singular values, which two libraries compute each in its own way, are that sensitive.
double sensitivity(Trial trial, const Tensors& expected, const Differentiate& differentiate) {
  for (DenseTensor& value : trial.values) value = with_other_last_bits(value);
  const Tensors actual = differentiate(trial, kCpu);
  double roundings = 1;
  while (roundings < 1 << 14 && !difference(actual, expected, kCpu, roundings).empty()) roundings *= 2;
  return roundings;
}

/// Which calls are compared.
struct Extent {
  std::vector<DType> dtypes = {DType::float64, DType::float32, DType::bfloat16, DType::float16};
  std::vector<std::vector<int64_t>> sizes = {{3, 4}, {0, 1, 7}};
};

/// Compares the gradients of cases on the device and on the CPU. Each call must succeed that the CPU has kernels for.
void compare(const Extent& extent, const Differentiate& differentiate, double ulps, double narrow_ulps) {
  const auto device = cuda_device();
  if (!device) return;
  std::map<std::string, std::vector<std::string>> problems;  // by op
  std::set<std::string> tried;
  for (const DType dtype : extent.dtypes) {
    const bool narrow = size_of(dtype) == 2;
    for (const TableCase& one : table()) {
      for (const std::vector<int64_t>& sizes : extent.sizes) {
        const auto add = [&](const std::string& problem) {
          problems[one.one->op].push_back(fmt::format("{} in {}: {}", one.text(), to_string(dtype), problem));
        };
        try {
          const auto expected = expected_of(one, dtype, sizes, differentiate);
          if (!expected) continue;
          const Tensors actual = differentiate(expected->first, *device);
          const std::string problem = difference(actual, expected->second, *device, narrow ? narrow_ulps : ulps);
          // The backward error of a decomposition is some last bits of its argument.
          const auto is_sensitive = [&] {
            const double roundings = 16 * sensitivity(expected->first, expected->second, differentiate);
            return !narrow && difference(actual, expected->second, *device, roundings).empty();
          };
          if (!problem.empty() && !is_sensitive()) add(problem);
          tried.insert(one.one->op);
        } catch (const Error& error) { add(error.what()); }
      }
    }
  }
  std::string report;
  for (const auto& [op, found] : problems) report += fmt::format("{}, and {} more\n", found[0], found.size() - 1);
  INFO(report);
  CHECK(problems.empty());
  CHECK(tried.size() > 150);
}

TEST_CASE("the gradients of every op with kernels for CUDA are on a device those of the CPU, in every dtype",
          "[slow_in_asan]") {
  compare({}, first_on, 200, 8);
}

TEST_CASE("the gradients of gradients of every op with kernels for CUDA are on a device those of the CPU",
          "[slow_in_asan]") {
  compare({}, second_on, 2000, 16);
}

#ifdef SHARD_TEST_SANITIZED  // other builds run all of it
TEST_CASE("the gradients of every op with kernels for CUDA are on a device those of the CPU, in float32") {
  compare({{DType::float32}, {{3, 4}}}, first_on, 200, 8);
}
#endif

}  // namespace
}  // namespace shard::test::cuda_test
