#include <dlfcn.h>
#include <nvrtc.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "shard/kernels/cuda/nvrtc_library.cuh"

struct _nvrtcProgram {
  std::string source, log, code;
};

namespace {

std::mutex mutex;
std::vector<cuda_host::CompiledSource> sources;

/// Folders of libraries that nobody has loaded yet, such as that of the probe. They are removed when the program ends.
struct Folders {
  std::set<std::filesystem::path> folders;

  ~Folders() {
    const std::lock_guard lock(mutex);
    for (const std::filesystem::path& folder : folders) remove(folder);
  }
  static void remove(const std::filesystem::path& folder) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};
Folders unloaded;

/// Launches kernel NAME with arguments like those of cudaLaunchKernel. It stands behind the source of the kernel.
constexpr const char* kLaunch = R"(
namespace {
template <class... P, size_t... i>
cudaError_t launch_with(void (*kernel)(P...), const char* name, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                        cudaStream_t stream, std::index_sequence<i...>) {
  return ::cuda_host::launch(name, kernel, blocks, threads, shared, stream, *static_cast<P*>(arguments[i])...);
}
template <class... P>
cudaError_t launch_kernel(void (*kernel)(P...), const char* name, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                          cudaStream_t stream) {
  return launch_with(kernel, name, blocks, threads, arguments, shared, stream, std::index_sequence_for<P...>());
}
}
extern "C" __attribute__((visibility("default"))) cudaError_t NAME_launch(dim3 blocks, dim3 threads, void** arguments, size_t shared, cudaStream_t stream) {
  return launch_kernel(shard::cuda::NAME, "NAME", blocks, threads, arguments, shared, stream);
}
)";
using Launch = cudaError_t(dim3, dim3, void**, size_t, cudaStream_t);

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

namespace cuda_host {

std::vector<CompiledSource> compiled_sources() {
  const std::lock_guard lock(mutex);
  return sources;
}

}  // namespace cuda_host

namespace shard::cuda {

const NvrtcLibrary* nvrtc_library() {
  static const NvrtcLibrary library{nvrtcCreateProgram, nvrtcCompileProgram, nvrtcDestroyProgram,
                                    nvrtcGetCUBINSize,  nvrtcGetCUBIN,       nvrtcGetProgramLogSize,
                                    nvrtcGetProgramLog, nvrtcGetErrorString};
  return std::getenv("CUDA_HOST_NVRTC") != nullptr ? &library : nullptr;
}

}  // namespace shard::cuda

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int headers,
                               const char* const* texts, const char* const* names) {
  const std::lock_guard lock(mutex);
  sources.push_back({source, {texts, texts + headers}, {names, names + headers}});
  *program = new _nvrtcProgram{source, {}, {}};
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  return NVRTC_SUCCESS;
}

/// The code is the path of a library. Headers are those of the source tree and of the model.
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int, const char* const*) {
  std::string text = program->source;
  if (std::getenv("CUDA_HOST_NVRTC") == std::string_view("probe") && text.find("shard_probe") == std::string::npos) {
    program->log = "only the probe compiles";
    return NVRTC_ERROR_COMPILATION;
  }
  std::smatch kernel;
  if (std::regex_search(text, kernel, std::regex("__global__ void (\\w+)\\(")))
    text = "#include <cuda_runtime.h>\n" + text +
           (text.find("namespace shard::cuda") == std::string::npos
                ? ""
                : std::regex_replace(kLaunch, std::regex("NAME"), kernel[1].str()));
  std::string folder = (std::filesystem::temp_directory_path() / "cuda_host_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return NVRTC_ERROR_COMPILATION;
  const std::string base = folder + "/kernel";
  std::ofstream(base + ".cc") << text;
  // The calls that -fsanitize=thread puts before accesses are answered by this program.
  const std::string command = std::string(CUDA_HOST_COMPILER) + " -c -o " + base + ".o " + base + ".cc > " + base +
                              ".log 2>&1 && " + CUDA_HOST_LINKER + " -o " + base + ".so " + base + ".o >> " + base +
                              ".log 2>&1";
  const int status = std::system(command.c_str());
  program->log = read(base + ".log");
  program->code = base + ".so";
  if (status == 0) {
    const std::lock_guard lock(mutex);
    unloaded.folders.insert(folder);
    return NVRTC_SUCCESS;
  }
  Folders::remove(folder);
  return NVRTC_ERROR_COMPILATION;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* bytes) {
  *bytes = program->code.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code) {
  std::memcpy(code, program->code.c_str(), program->code.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return NVRTC_SUCCESS;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  if (const cudaError_t refused = cuda_host::unsafe_call(); refused != cudaSuccess) return refused;
  const std::filesystem::path path = static_cast<const char*>(code);
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  Folders::remove(path.parent_path());
  {
    const std::lock_guard lock(mutex);
    unloaded.folders.erase(path.parent_path());
  }
  *library = static_cast<cudaLibrary_t>(handle);
  return handle == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  *kernel = static_cast<cudaKernel_t>(dlsym(library, (std::string(name) + "_launch").c_str()));
  return *kernel == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

namespace {

/// The first use of a kernel on a device loads it, which a recording may not take.
cudaError_t load(const void* kernel) {
  static std::set<std::pair<int, const void*>> loaded;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  if (loaded.count({device, kernel}) != 0) return cudaSuccess;
  const cudaError_t status = cuda_host::unsafe_call();
  if (status == cudaSuccess) loaded.insert({device, kernel});
  return status;
}

}  // namespace

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  return kernel == nullptr ? cudaErrorInvalidValue : load(kernel);
}

/// Kernels of libraries that were loaded.
cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                             cudaStream_t stream) {
  if (const cudaError_t refused = load(kernel); refused != cudaSuccess) return refused;
  return reinterpret_cast<Launch*>(const_cast<void*>(kernel))(blocks, threads, arguments, shared, stream);
}
