// For tests that run on a CUDA device as well: the device, and whether it may lack the kernels of a call.
#pragma once

#include <catch2/catch.hpp>

#include <fstream>
#include <optional>
#include <set>
#include <string>

#include "shard/core/cuda/cuda_backend.h"
#include "shard/core/device.h"
#include "shard/core/error.h"
#include "support/source_dir.h"

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

/// The ops of which CUDA has no kernel at all, for a call that its case names: without_cuda.txt has one to a line.
inline const std::set<std::string>& ops_without_cuda() {
  static const std::set<std::string> all = [] {
    std::ifstream file(source_dir() + "/tests/conformance/without_cuda.txt");
    std::set<std::string> names;
    for (std::string name; std::getline(file, name);) names.insert(name);
    return names;
  }();
  return all;
}

/// True for the error of a call that CUDA is known not to have: it has no kernel of an op in without_cuda.txt, or one that
/// does not combine values over ranks.
inline bool is_known_lack(const Error& error) {
  if (error.code() != ErrorCode::no_kernel) return false;
  const std::string text = error.what();  // "[op] ..."
  return text.find("the CUDA kernel does not combine values over ranks") != std::string::npos ||
         ops_without_cuda().contains(text.substr(1, text.find(']') - 1));
}

}  // namespace shard::test
