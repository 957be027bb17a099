#include "shard/kernels/cuda/nvrtc_library.cuh"

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "shard/kernels/cuda/opened_library.h"

namespace shard::cuda {
namespace {

std::optional<NvrtcLibrary> open() {
  const std::string versioned = "libnvrtc.so." + std::to_string(CUDART_VERSION / 1000);
  OpenedLibrary library({versioned.c_str(), "libnvrtc.so"});
  NvrtcLibrary functions{};
  library.find(functions.create_program, "nvrtcCreateProgram");
  library.find(functions.compile_program, "nvrtcCompileProgram");
  library.find(functions.destroy_program, "nvrtcDestroyProgram");
  library.find(functions.get_cubin_size, "nvrtcGetCUBINSize");
  library.find(functions.get_cubin, "nvrtcGetCUBIN");
  library.find(functions.get_program_log_size, "nvrtcGetProgramLogSize");
  library.find(functions.get_program_log, "nvrtcGetProgramLog");
  library.find(functions.get_error_string, "nvrtcGetErrorString");
  return library.is_complete() ? std::optional(functions) : std::nullopt;
}

}  // namespace

const NvrtcLibrary* nvrtc_library() {
  static const std::optional<NvrtcLibrary> library = open();
  return library ? &*library : nullptr;
}

}  // namespace shard::cuda
