// Names the backends that the library is built with. A new one is added here.
#include <utility>

#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/device.h"

namespace shard {

std::vector<Backend> builtin_backends() {
  std::vector<Backend> backends;
  if (std::optional<Backend> cuda = cuda_backend()) backends.push_back(std::move(*cuda));
  return backends;
}

}  // namespace shard
