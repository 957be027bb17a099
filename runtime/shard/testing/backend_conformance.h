// The tests that every backend must pass: the library shard::testing. docs/architecture.md says
// what a backend is, examples/custom_backend shows how one is registered. conformance_cases.h lists
// the calls of kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shard/core/device.h"
#include "shard/core/export.h"

namespace shard::testing {

/// Called with a line for each kernel that the backend lacks, with the dtypes.
using SkipSink = std::function<void(const std::string& reason)>;

/// Tests the contract of Backend (allocations, copies in all directions, synchronize, graphs if it
/// has them, registration, errors) on `device`, then every kernel that its backend has, against the
/// CPU: with fresh tensors, and with views inside larger buffers, next to which nothing may be
/// written; if the backend has graphs, also recorded and launched. Returns a sentence for each
/// finding: none when the backend conforms.
SHARD_API std::vector<std::string> check_backend(Device device, const SkipSink& skipped);

}  // namespace shard::testing
