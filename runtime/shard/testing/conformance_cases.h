// The table of kernel calls with which every backend is tested. A new op gets a function in
// conformance_cases.cc; backend_conformance.cc runs the calls.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/core/op_context.h"

namespace shard::testing {

/// Looks the kernel up for the device and dtype of the first input, and calls it.
using RunKernel = std::function<void(const OpContext& ctx, std::span<const DenseTensor> inputs, DenseTensor& out)>;

/// One call of a kernel: its input and output tensors.
struct KernelCall {
  std::string text;  // "f32[3, 5], f32[5] -> f32[3, 5]", with the attributes
  std::vector<Meta> inputs;
  Meta out;
  RunKernel run;

  /// The dtype that selects the kernel.
  DType dtype() const { return inputs.front().dtype; }
};

/// The calls of one kernel, in every dtype that it has on the CPU: among them tensors without
/// elements, with one element, with odd sizes, with many dims, and broadcast ones.
struct KernelCases {
  std::string kernel;
  std::vector<KernelCall> calls;
};

std::vector<KernelCases> kernel_cases();

}  // namespace shard::testing
