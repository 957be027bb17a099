// Helpers of the device tests: run one kernel on the CPU and on the device, compare.
// testing/conformance_cases.cc has the shapes and dtypes that every backend must accept; the files here have the
// special cases of CUDA's kernels.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "shard/core/op_context.h"
#include "shard/kernels/registry.h"
#include "shard/testing/tensors.h"
#include "support/cuda_device.h"

namespace shard::test {

using testing::copy_to;
using testing::random_tensor;

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
