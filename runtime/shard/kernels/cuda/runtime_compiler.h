// Kernels that are compiled when the library runs, by NVRTC.
#pragma once

#include <string>

namespace shard::cuda {

/// Whether NVRTC was found and compiles this source for the device. It is asked once for each architecture.
bool compiles_at_runtime(int device, const std::string& probe);

/// The kernel `name` of this source, for the current device: a source is compiled once for each architecture, and its kernel stays
/// loaded. The source may include kSourceFiles (fused_loop.h). Null where the compiler refuses the
/// source, with a message in the log the first time. Throws Error(device) where NVRTC has no memory, or CUDA does not load the code.
const void* compile_kernel(const std::string& source, const char* name);

}  // namespace shard::cuda
