// The interface of the CUDA backend. It exists in every build; without CUDA, cuda_stub.cc
// implements it.
#pragma once

#include <optional>

#include "shard/core/device.h"

namespace shard {

/// The backend "cuda"; nothing when no device can be used.
///
/// A thread issues its work to one stream per device (CUDA's per-thread default stream), in program
/// order. Before another thread uses a tensor, Backend::synchronize must be called.
std::optional<Backend> cuda_backend();

/// "ready: 2 devices", or why there is none. The text lives as long as the library.
const char* cuda_status();

}  // namespace shard
