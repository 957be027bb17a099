// For tests that run on a CUDA device as well: the device, and whether it may lack the kernels of a call.
#pragma once

#include <catch2/catch.hpp>

#include <optional>
#include <string>
#include <string_view>

#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/device.h"
#include "shard/core/error.h"

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

/// True for the error of a call that CUDA is known not to have: one of a kernel that does not combine values over ranks.
inline bool is_known_lack(const Error& error) {
  return error.code() == ErrorCode::no_kernel &&
         std::string_view(error.what()).find("the CUDA kernel does not combine values over ranks") !=
             std::string_view::npos;
}

}  // namespace shard::test
