// The interface of the CUDA backend. It exists in every build; without CUDA, cuda_stub.cc
// implements it.
#pragma once

#include <optional>

#include "shard/core/device.h"

namespace shard {

/// The backend "cuda"; nothing when no device can be used.
///
/// Threads issue their work on a device to one stream, in program order; ranks that are threads of one process to one each
/// (core/own_streams.h). Where such a rank is one of two threads that pass a tensor, the first must call Backend::synchronize.
std::optional<Backend> cuda_backend();

/// "ready: 2 devices", or why there is none. The text lives as long as the library.
const char* cuda_status();

}  // namespace shard
