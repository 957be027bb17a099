// The functions of NVRTC that are called, from the library that is opened at run time: programs work without it.
#pragma once

#include <nvrtc.h>

namespace shard::cuda {

struct NvrtcLibrary {
  decltype(&nvrtcCreateProgram) create_program;
  decltype(&nvrtcCompileProgram) compile_program;
  decltype(&nvrtcDestroyProgram) destroy_program;
  decltype(&nvrtcGetCUBINSize) get_cubin_size;
  decltype(&nvrtcGetCUBIN) get_cubin;
  decltype(&nvrtcGetProgramLogSize) get_program_log_size;
  decltype(&nvrtcGetProgramLog) get_program_log;
  decltype(&nvrtcGetErrorString) get_error_string;
};

/// Null where it was not found. The library of the CUDA version that this one was built with.
const NvrtcLibrary* nvrtc_library();

}  // namespace shard::cuda
