// A compiler for kernels at run time, which the model has where a test asks for it.
#pragma once

#include <catch2/catch.hpp>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "shard/core/device.h"
#include "shard/core/log.h"
#include "shard/kernels/registry.h"

namespace shard::test {

/// While it lives, the model has a compiler for kernels at run time, as devices have where NVRTC is found. No source may be refused, which
/// would hide what is wrong with it: ops run one by one then.
class RuntimeCompiler {
 public:
  /// On the model, `sources` is "all", or "probe" where it compiles the probe alone.
  explicit RuntimeCompiler(std::string_view sources = "all") : compiles_all_(sources == "all") {
    setenv("CUDA_HOST_NVRTC", sources.data(), 1);
    refusals_ = 0;
    set_log_sink(
        [](std::string_view message) { refusals_ += message.find("loop are computed one by one") != message.npos; });
  }
  ~RuntimeCompiler() {
    unsetenv("CUDA_HOST_NVRTC");
    set_log_sink({});
    if (compiles_all_) CHECK(refusals() == 0);
  }
  RuntimeCompiler(const RuntimeCompiler&) = delete;
  RuntimeCompiler& operator=(const RuntimeCompiler&) = delete;

  int refusals() const { return refusals_; }
  /// Says why there is none.
  bool is_there(Device device) const {
    kernel_table("add");  // kernels are registered when one is first looked up, and loops with them
    const LoopFunctions& loops = backend_of(device).loops;
    const bool there = loops.compiles != nullptr && loops.compiles(device.index);
    if (!there) WARN("skipped: NVRTC was not found, so that there are no fused loops");
    return there;
  }

 private:
  inline static std::atomic<int> refusals_;
  bool compiles_all_;
};

}  // namespace shard::test
