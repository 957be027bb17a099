// For built-in kernels, which are registered after their backend.
#pragma once

#include "shard/core/device.h"

namespace shard {

/// Sets Backend::loops. No program may be captured meanwhile.
void set_loop_functions(int backend, const LoopFunctions& functions);

}  // namespace shard
