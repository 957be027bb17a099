// For tests that run on a CUDA device as well.
#pragma once

#include <catch2/catch.hpp>

#include <optional>

#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/device.h"

namespace shard::test {

/// The first CUDA device. Where there is none, a warning says why and the result is empty: the test returns.
inline std::optional<Device> cuda_device() {
  const int backend = find_backend("cuda");
  if (backend < 0) {
    WARN("skipped: " << cuda_status());
    return std::nullopt;
  }
  return Device{static_cast<uint8_t>(backend), 0};
}

/// Whether there are `count` CUDA devices. Where there are fewer, a warning says what is not tested.
inline bool has_devices(Device first, int count, const char* tested) {
  const int there = backend_of(first).device_count();
  if (there < count) WARN("skipped: " << tested << " need " << count << " devices, not " << there);
  return there >= count;
}

}  // namespace shard::test
