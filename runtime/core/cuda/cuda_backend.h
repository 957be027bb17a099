// The CUDA backend as the rest of the library sees it. It is there in every build; without CUDA, cuda_stub.cc stands in.
#pragma once

#include <optional>

#include "core/device.h"

namespace shard {

/// The backend "cuda"; nothing when no device can be used.
///
/// A thread issues its work to one stream per device (CUDA's per-thread default stream), in program order. A tensor that
/// another thread is to use must be handed over after Backend::synchronize.
std::optional<Backend> cuda_backend();

/// "ready: 2 devices", or why there is none. The text lives as long as the library.
const char* cuda_status();

}  // namespace shard
