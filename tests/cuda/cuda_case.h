// Helpers of the device tests: find the device, run one kernel on the CPU and on the device, compare.
// testing/conformance_cases.cc has the shapes and dtypes that every backend must accept; the files here have the
// special cases of CUDA's kernels.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/op_context.h"
#include "shard/kernels/registry.h"
#include "shard/testing/tensors.h"

namespace shard::test {

using testing::copy_to;
using testing::random_tensor;

/// The first CUDA device. Where there is none, a warning says why and the result is empty: the test returns.
inline std::optional<Device> cuda_device() {
  const int backend = find_backend("cuda");
  if (backend < 0) {
    WARN("skipped: " << cuda_status());
    return std::nullopt;
  }
  return Device{static_cast<uint8_t>(backend), 0};
}

inline void require_close(const DenseTensor& actual, const DenseTensor& expected) {
  REQUIRE(testing::difference(actual, expected) == "");
}

/// Runs kernel `name` for x's dtype on the CPU and on `device`, and compares. `attrs` come between inputs and
/// output.
template <class... Attrs>
struct Kernel {
  const char* name;

  void compare(Device device, const std::vector<DenseTensor>& inputs, const Meta& out_meta, Attrs... attrs) const {
    INFO(name << " of " << to_string(inputs[0].meta()) << " to " << to_string(out_meta));
    const DenseTensor expected = run(kCpu, inputs, out_meta, attrs...);
    std::vector<DenseTensor> moved;
    for (const DenseTensor& input : inputs) moved.push_back(copy_to(device, input));
    require_close(run(device, moved, out_meta, attrs...), expected);
  }

  DenseTensor run(Device device, const std::vector<DenseTensor>& inputs, const Meta& out_meta, Attrs... attrs) const {
    const OpContext ctx{name};
    DenseTensor out = DenseTensor::allocate(device, out_meta);
    const DType dtype = inputs[0].dtype();
    const KernelTable& table = kernel_table(name);
    using In = const DenseTensor&;
    if (inputs.size() == 1) {
      table.find<void(const OpContext&, In, Attrs..., DenseTensor&)>(ctx, device, dtype)
          .function(ctx, inputs[0], attrs..., out);
    } else {
      table.find<void(const OpContext&, In, In, Attrs..., DenseTensor&)>(ctx, device, dtype)
          .function(ctx, inputs[0], inputs[1], attrs..., out);
    }
    return out;
  }
};

}  // namespace shard::test
