#include "shard/core/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "shard/core/error.h"
#include "shard/core/host_cache.h"
#include "shard/core/loop_functions.h"
#include "shard/core/thread_state.h"

namespace shard {
namespace {

void* cpu_allocate(int, size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = allocate_host(bytes);
  if (data == nullptr) fail(ErrorCode::device, "out of memory: {} bytes on the CPU", bytes);
  return data;
}
void cpu_copy(int, void* to, const void* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// Constructed at the first use, under the lock of C++ statics, so that the built-in backends exist
/// for every caller.
struct Registry {
  std::mutex mutex;
  std::array<Backend, kMaxBackends> backends;
  int count = 0;

  Registry() {
    add({"cpu", [] { return 1; }, cpu_allocate, [](int, void* data) { free_host(data); }, cpu_copy, cpu_copy, cpu_copy,
         [](int) {}});
    for (const Backend& backend : builtin_backends()) add(backend);
  }

  int find(std::string_view name) const {
    for (int i = 0; i < count; ++i) {
      if (backends[static_cast<size_t>(i)].name == name) return i;
    }
    return -1;
  }

  int add(const Backend& backend) {
    if (count == kMaxBackends) {
      fail(ErrorCode::invalid_argument,
           "backend '{}' cannot be registered: there are already {}, the maximum (kMaxBackends)", backend.name,
           kMaxBackends);
    }
    backends[static_cast<size_t>(count)] = backend;
    return count++;
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

/// The name of a function of Backend that is null, or null when it is complete.
const char* missing_function(const Backend& backend) {
  if (backend.device_count == nullptr) return "device_count";
  if (backend.allocate == nullptr) return "allocate";
  if (backend.free == nullptr) return "free";
  if (backend.copy == nullptr) return "copy";
  if (backend.copy_from_host == nullptr) return "copy_from_host";
  if (backend.copy_to_host == nullptr) return "copy_to_host";
  if (backend.synchronize == nullptr) return "synchronize";
  return nullptr;
}

/// The name of a graph function that is null although another one is set, or null.
const char* missing_graph_function(const Backend& backend) {
  const std::pair<const char*, bool> functions[] = {{"graph_begin", backend.graph_begin != nullptr},
                                                    {"graph_end", backend.graph_end != nullptr},
                                                    {"graph_abandon", backend.graph_abandon != nullptr},
                                                    {"graph_launch", backend.graph_launch != nullptr},
                                                    {"graph_free", backend.graph_free != nullptr}};
  const auto set = [](const auto& function) { return function.second; };
  if (std::none_of(std::begin(functions), std::end(functions), set)) return nullptr;
  const auto missing = std::find_if_not(std::begin(functions), std::end(functions), set);
  return missing == std::end(functions) ? nullptr : missing->first;
}

}  // namespace

int register_backend(const Backend& backend) {
  if (backend.name.empty()) fail(ErrorCode::invalid_argument, "a backend needs a name; set Backend::name");
  if (const char* missing = missing_function(backend)) {
    fail(ErrorCode::invalid_argument,
         "backend '{}' has no function {}; set every member of Backend that is not optional", backend.name, missing);
  }
  if (const char* missing = missing_graph_function(backend)) {
    fail(ErrorCode::invalid_argument, "backend '{}' has graph functions, but no function {}; set all of them or none",
         backend.name, missing);
  }
  const LoopFunctions& loops = backend.loops;
  const bool functions[] = {loops.compiles != nullptr, loops.begin != nullptr, loops.drop != nullptr,
                            loops.end != nullptr, loops.abandon != nullptr};
  if (const auto count = std::count(std::begin(functions), std::end(functions), true); count != 0 && count != 5) {
    fail(ErrorCode::invalid_argument, "backend '{}' has {} of the 5 loop functions; set all of them or none",
         backend.name, count);
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.find(backend.name) >= 0) {
    fail(ErrorCode::invalid_argument, "backend '{}' is registered already; find_backend returns its id", backend.name);
  }
  return all.add(backend);
}

int find_backend(std::string_view name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.find(name);
}

const Backend& backend_of(Device device) { return registry().backends[device.backend]; }

void run_in_loop(Device device, const std::function<void()>& calls) {
  const LoopFunctions& loops = backend_of(device).loops;
  loops.begin(device.index);
  try {
    calls();
  } catch (...) {
    loops.abandon(device.index);
    throw;
  }
  loops.end(device.index);
}

void set_loop_functions(int backend, const LoopFunctions& functions) {
  registry().backends[static_cast<size_t>(backend)].loops = functions;
}

std::string to_string(Device device) {
  const std::string& name = backend_of(device).name;
  return device.backend == 0 ? name : fmt::format("{}:{}", name, device.index);
}

namespace {

/// All devices of a backend, or the one that `text` names.
std::vector<Device> devices_named(std::string_view text) {
  const size_t colon = text.find(':');
  const int backend = find_backend(text.substr(0, colon));
  const int count = backend < 0 ? 0 : registry().backends[static_cast<size_t>(backend)].device_count();
  int index = -1;
  bool valid = count > 0;
  if (valid && colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    valid = error == std::errc() && end == digits.data() + digits.size() && index >= 0 && index < count;
  }
  if (!valid) {
    std::string known;
    for (int i = 0; i < registry().count; ++i) {
      const Backend& each = registry().backends[static_cast<size_t>(i)];
      const int devices = each.device_count();
      known += fmt::format("{}{}{}", known.empty() ? "" : ", ", each.name,
                           devices > 1 ? fmt::format(":0 to {}:{}", each.name, devices - 1) : "");
    }
    fail(ErrorCode::invalid_argument, "there is no device '{}' here; name one of {}", text, known);
  }
  std::vector<Device> devices;
  for (int i = std::max(index, 0); i < (index < 0 ? count : index + 1); ++i)
    devices.push_back({static_cast<uint8_t>(backend), static_cast<uint8_t>(i)});
  return devices;
}

}  // namespace

Device parse_device(std::string_view text) { return devices_named(text).front(); }

const std::vector<Device>& process_devices() {
  static const std::vector<Device> devices = [] {
    const char* const variable = std::getenv("SHARD_DEVICE");
    std::string_view text = variable == nullptr ? "" : variable;
    if (text.empty()) return std::vector<Device>{kCpu};
    std::vector<Device> all;
    while (true) {
      const size_t comma = text.find(',');
      try {
        for (const Device device : devices_named(text.substr(0, comma))) all.push_back(device);
      } catch (const Error& error) {
        fail(error.code(), "environment variable SHARD_DEVICE is '{}': {}", variable, error.what());
      }
      if (comma == std::string_view::npos) return all;
      text.remove_prefix(comma + 1);
    }
  }();
  return devices;
}

Device default_device() { return this_thread.device != nullptr ? *this_thread.device : process_devices().front(); }

DefaultDevice::DefaultDevice(Device device) : device_(device), before_(std::exchange(this_thread.device, &device_)) {}

DefaultDevice::~DefaultDevice() { this_thread.device = before_; }

void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (to_device == from_device) {
    backend_of(to_device).copy(to_device.index, to, from, bytes);
  } else if (from_device.backend == 0) {
    backend_of(to_device).copy_from_host(to_device.index, to, from, bytes);
  } else if (to_device.backend == 0) {
    backend_of(from_device).copy_to_host(from_device.index, to, from, bytes);
  } else if (const Backend& backend = backend_of(to_device);
             to_device.backend == from_device.backend && backend.copy_between != nullptr) {
    backend.copy_between(to_device.index, to, from_device.index, from, bytes);
  } else {
    std::vector<char> host(bytes);
    backend_of(from_device).copy_to_host(from_device.index, host.data(), from, bytes);
    backend_of(to_device).copy_from_host(to_device.index, to, host.data(), bytes);
  }
}

}  // namespace shard
