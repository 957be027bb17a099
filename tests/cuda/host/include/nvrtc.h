// The functions of NVRTC that shard calls, of the host model: the host compiler makes a library of a source, which is loaded.
// It is found only where the environment variable CUDA_HOST_NVRTC is set: the compiler takes a second for each kernel.
// With the value "probe" it takes the source of the probe alone.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

enum nvrtcResult { NVRTC_SUCCESS = 0, NVRTC_ERROR_OUT_OF_MEMORY = 1, NVRTC_ERROR_COMPILATION = 6 };
using nvrtcProgram = struct _nvrtcProgram*;

const char* nvrtcGetErrorString(nvrtcResult result);
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers,
                               const char* const* texts, const char* const* names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program);
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* bytes);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* bytes);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log);

namespace cuda_host {

/// A source that was compiled, and what it may include.
struct CompiledSource {
  std::string text;
  std::vector<const char*> texts, names;  // of headers
};
/// All of this process.
std::vector<CompiledSource> compiled_sources();

}  // namespace cuda_host
