// Calls of kernels with any parameters, on the CPU and on the device.
#pragma once

#include <cstring>

#include "cuda_case.h"

namespace shard::test {

using In = const DenseTensor&;
using Out = DenseTensor&;

/// Calls kernel `name`, whose parameters are P.
template <class... P>
void run_kernel(const char* name, Device device, DType dtype, std::type_identity_t<P>... arguments) {
  const OpContext ctx{name};
  kernel_table(name).find<void(const OpContext&, P...)>(ctx, device, dtype).function(ctx, arguments...);
}

using DenseTensors = std::vector<DenseTensor>;

/// run(device, inputs), which returns results, has equal results on the CPU and on the device, where a second run has equal bits.
template <class Run>
void compare_run(Device device, const DenseTensors& inputs, const Run& run) {
  DenseTensors moved;
  for (const DenseTensor& input : inputs) moved.push_back(input.defined() ? copy_to(device, input) : input);
  const DenseTensors expected = run(kCpu, inputs), actual = run(device, moved), again = run(device, moved);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("result " << i);
    require_close(actual[i], expected[i]);
    const DenseTensor first = copy_to(kCpu, actual[i]), second = copy_to(kCpu, again[i]);
    CHECK(std::memcmp(first.data<char>(), second.data<char>(), first.meta().bytes()) == 0);
  }
}

inline DType statistics_of(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

}  // namespace shard::test
