// For tests of what cuDNN computes.
#pragma once

#include <cstdlib>

namespace shard::test {

/// While one lives, cuDNN of the model is found. That of a device is, if it is there, in any case.
struct WithCudnn {
  WithCudnn() { setenv("CUDA_HOST_CUDNN", "1", 1); }
  ~WithCudnn() { unsetenv("CUDA_HOST_CUDNN"); }
  WithCudnn(const WithCudnn&) = delete;
  WithCudnn& operator=(const WithCudnn&) = delete;
};

}  // namespace shard::test
