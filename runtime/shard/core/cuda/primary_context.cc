// Which devices the process has a context on. The runtime of CUDA cannot tell, its driver can.
#include <dlfcn.h>

#include "shard/core/cuda/cuda_call.cuh"

namespace shard::cuda {

bool has_context(int index) {
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const auto get_state = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver == nullptr ? nullptr : reinterpret_cast<GetState>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state == nullptr || get_state(index, &flags, &active) != 0 || active != 0;
}

}  // namespace shard::cuda
