// Helpers of the device tests: find the device, make inputs, run one kernel on the CPU and on the device, compare.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/op_context.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/registry.h"

namespace shard::test {

/// The first CUDA device. Where there is none, a warning says why and the result is empty: the test returns.
inline std::optional<Device> cuda_device() {
  kernel_table("add");  // registers the backends
  const int backend = find_backend("cuda");
  if (backend < 0) {
    WARN("skipped: " << cuda_status());
    return std::nullopt;
  }
  return Device{static_cast<uint8_t>(backend), 0};
}

inline DenseTensor on(Device device, const DenseTensor& tensor) {
  DenseTensor copy = DenseTensor::allocate(device, tensor.meta());
  copy_into(copy, tensor);
  return copy;
}

/// Values that every dtype can hold: whole numbers in [0, 3] for integers, quarters in [-2, 2] for floats.
inline DenseTensor random_tensor(const Dims& dims, DType dtype, unsigned seed) {
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

inline double value_at(const DenseTensor& tensor, int64_t i) {
  return visit_dtype(tensor.dtype(), [&]<class T>(TypeTag<T>) { return static_cast<double>(tensor.data<T>()[i]); });
}

/// What one rounding of a result may differ by, relative to its size; 0 for integers.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float32: return 1e-5;
    case DType::float64: return 1e-12;
    case DType::bfloat16: return 1.6e-2;
    case DType::float16: return 2e-3;
    case DType::int32:
    case DType::int64:
    case DType::uint8:
    case DType::boolean: return 0;
  }
  return 0;
}

inline void require_close(const DenseTensor& device_value, const DenseTensor& expected) {
  const DenseTensor actual = on(kCpu, device_value);
  REQUIRE(actual.meta() == expected.meta());
  const double relative = tolerance(expected.dtype());
  int64_t wrong = 0;
  std::string first;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const double a = value_at(actual, i);
    const double e = value_at(expected, i);
    if ((std::isnan(a) && std::isnan(e)) || a == e || std::abs(a - e) <= relative * (1 + std::abs(e))) continue;
    if (wrong++ == 0) first = "element " + std::to_string(i) + " is " + std::to_string(a) + ", expected " + std::to_string(e);
  }
  INFO(first);
  REQUIRE(wrong == 0);
}

/// Runs kernel `name` for x's dtype on the CPU and on `device`, and compares. `attrs` stand between inputs and output.
template <class... Attrs>
struct Kernel {
  const char* name;

  void compare(Device device, const std::vector<DenseTensor>& inputs, const Meta& out_meta, Attrs... attrs) const {
    INFO(name << " of " << to_string(inputs[0].meta()) << " to " << to_string(out_meta));
    const DenseTensor expected = run(kCpu, inputs, out_meta, attrs...);
    std::vector<DenseTensor> moved;
    for (const DenseTensor& input : inputs) moved.push_back(on(device, input));
    require_close(run(device, moved, out_meta, attrs...), expected);
  }

  DenseTensor run(Device device, const std::vector<DenseTensor>& inputs, const Meta& out_meta, Attrs... attrs) const {
    const OpContext ctx{name};
    DenseTensor out = DenseTensor::allocate(device, out_meta);
    const DType dtype = inputs[0].dtype();
    const KernelTable& table = kernel_table(name);
    using In = const DenseTensor&;
    if (inputs.size() == 1) {
      table.find<void(const OpContext&, In, Attrs..., DenseTensor&)>(ctx, device, dtype)(ctx, inputs[0], attrs..., out);
    } else {
      table.find<void(const OpContext&, In, In, Attrs..., DenseTensor&)>(ctx, device, dtype)(ctx, inputs[0], inputs[1],
                                                                                             attrs..., out);
    }
    return out;
  }
};

inline const std::vector<DType> kFloats = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
inline const std::vector<DType> kNumbers = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                                            DType::int32,   DType::int64,   DType::uint8};
inline const std::vector<DType> kAll = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                                        DType::int32,   DType::int64,   DType::uint8,    DType::boolean};

}  // namespace shard::test
