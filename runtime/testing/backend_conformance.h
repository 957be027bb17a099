// The tests that a backend must pass, wherever it is written: the library shard::testing. docs/architecture.md says what a
// backend is, examples/custom_backend how one is registered. The calls of kernels are listed in conformance_cases.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/device.h"

namespace shard::testing {

/// Gets a line for each kernel that the backend lacks, with the dtypes.
using SkipSink = std::function<void(const std::string& reason)>;

/// Tries the contract of Backend (allocations, copies in all directions, synchronize, graphs where it has them, registration,
/// errors) on `device`, then every kernel that its backend has, against the CPU: with fresh tensors, and with views inside of
/// larger buffers, next to which nothing may be written; where the backend has graphs, recorded and launched too. Returns a
/// sentence for each finding: none when the backend conforms.
std::vector<std::string> check_backend(Device device, const SkipSink& skipped);

}  // namespace shard::testing
