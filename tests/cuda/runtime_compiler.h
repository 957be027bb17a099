// A compiler for kernels at run time, which the model has where a test asks for it.
#pragma once

#include <catch2/catch.hpp>

#include <cstdlib>

#include "shard/core/device.h"
#include "shard/kernels/registry.h"

namespace shard::test {

/// While it lives, the model has a compiler for kernels at run time, as devices have where NVRTC is found.
class RuntimeCompiler {
 public:
  /// On the model, `sources` is "all", or "probe" where it compiles the probe alone.
  explicit RuntimeCompiler(const char* sources = "all") { setenv("CUDA_HOST_NVRTC", sources, 1); }
  ~RuntimeCompiler() { unsetenv("CUDA_HOST_NVRTC"); }
  RuntimeCompiler(const RuntimeCompiler&) = delete;
  RuntimeCompiler& operator=(const RuntimeCompiler&) = delete;

  /// Says why there is none.
  bool is_there(Device device) const {
    kernel_table("add");  // kernels are registered when one is first looked up, and loops with them
    const LoopFunctions& loops = backend_of(device).loops;
    const bool there = loops.possible != nullptr && loops.possible(device.index);
    if (!there) WARN("skipped: NVRTC was not found, so that there are no fused loops");
    return there;
  }
};

}  // namespace shard::test
