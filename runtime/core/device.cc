#include "core/device.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/error.h"

namespace shard {
namespace {

void* cpu_allocate(int, size_t bytes) {
  void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (data == nullptr) fail(ErrorCode::device, "out of memory: {} bytes on the CPU", bytes);
  return data;
}
void cpu_copy(int, void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

struct Registry {
  std::mutex mutex;
  std::array<Backend, kMaxBackends> backends;
  int count = 0;

  Registry() {
    backends[0] = {"cpu",    [] { return 1; }, cpu_allocate, [](int, void* data) { std::free(data); },
                   cpu_copy, cpu_copy,         cpu_copy,     [](int) {}};
    count = 1;
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

int register_backend(const Backend& backend) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (int i = 0; i < all.count; ++i) {
    if (all.backends[static_cast<size_t>(i)].name == backend.name) return i;
  }
  if (all.count == kMaxBackends) {
    fail(ErrorCode::invalid_argument, "backend '{}' does not fit: there are already {}", backend.name, kMaxBackends);
  }
  all.backends[static_cast<size_t>(all.count)] = backend;
  return all.count++;
}

int find_backend(std::string_view name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (int i = 0; i < all.count; ++i) {
    if (all.backends[static_cast<size_t>(i)].name == name) return i;
  }
  return -1;
}

const Backend& backend_of(Device device) { return registry().backends[device.backend]; }

std::string to_string(Device device) {
  const std::string& name = backend_of(device).name;
  return device.backend == 0 ? name : fmt::format("{}:{}", name, device.index);
}

void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (to_device == from_device) {
    backend_of(to_device).copy(to_device.index, to, from, bytes);
  } else if (from_device.backend == 0) {
    backend_of(to_device).copy_from_host(to_device.index, to, from, bytes);
  } else if (to_device.backend == 0) {
    backend_of(from_device).copy_to_host(from_device.index, to, from, bytes);
  } else {
    std::vector<char> host(bytes);
    backend_of(from_device).copy_to_host(from_device.index, host.data(), from, bytes);
    backend_of(to_device).copy_from_host(to_device.index, to, host.data(), bytes);
  }
}

}  // namespace shard
