#include "shard/kernels/cuda/runtime_compiler.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/error.h"
#include "shard/core/log.h"
#include "shard/kernels/cuda/fused_loop.h"
#include "shard/kernels/cuda/nvrtc_library.cuh"

namespace shard::cuda {
namespace {

/// Stands in for headers that the compiler does not have by itself: what sources need of each.
constexpr SourceFile kHeaders[] = {
    {"cuda_runtime.h", ""},
    {"cstring", ""},
    {"cstdint", R"(#pragma once
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
)"},
    {"cmath", R"(#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
namespace std {
using ::abs;
using ::copysign;
using ::floor;
using ::fmod;
}  // namespace std
)"},
    {"type_traits", R"(#pragma once
namespace std {
template <class A, class B> inline constexpr bool is_same_v = false;
template <class A> inline constexpr bool is_same_v<A, A> = true;
template <class T, class... Any> inline constexpr bool is_one_of_v = (is_same_v<T, Any> || ...);
template <class T> inline constexpr bool is_floating_point_v = is_one_of_v<T, float, double>;
template <class T> inline constexpr bool is_unsigned_v =
    is_one_of_v<T, bool, unsigned char, unsigned short, unsigned, unsigned long, unsigned long long>;
template <class T> inline constexpr bool is_integral_v =
    is_unsigned_v<T> || is_one_of_v<T, char, signed char, short, int, long, long long>;
template <class T> inline constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> inline constexpr bool is_signed_v = is_arithmetic_v<T> && !is_unsigned_v<T>;
template <bool, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool which, class A, class B> using conditional_t = typename conditional<which, A, B>::type;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool condition, class T = void> using enable_if_t = typename enable_if<condition, T>::type;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using make_unsigned_t =
    conditional_t<sizeof(T) == 1, unsigned char, conditional_t<sizeof(T) == 2, unsigned short,
    conditional_t<sizeof(T) == 4, unsigned, unsigned long long>>>;
}  // namespace std
)"},
    {"cuda_bf16.h", R"(#pragma once
struct __nv_bfloat16 { unsigned short bits; };
__device__ inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(unsigned(value.bits) << 16); }
__device__ inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  __nv_bfloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
)"},
    {"cuda_fp16.h", R"(#pragma once
struct __half { unsigned short bits; };
__device__ inline float __half2float(__half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ inline __half __float2half_rn(float value) {
  __half result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
)"},
};

void check(nvrtcResult status, const char* call) {
  if (status != NVRTC_SUCCESS)
    fail(ErrorCode::device, "{} failed: {}", call, nvrtc_library()->get_error_string(status));
}

/// The compiler does not take a source.
class Refusal : public Error {
 public:
  using Error::Error;
};

class Program {
 public:
  Program(const std::string& source, std::span<const SourceFile> files) {
    std::vector<const char*> texts, names;
    for (const std::span<const SourceFile> all : {std::span<const SourceFile>(kHeaders), files}) {
      for (const SourceFile& file : all) {
        texts.push_back(file.text);
        names.push_back(file.name);
      }
    }
    check(library_.create_program(&program_, source.c_str(), "shard_loop.cu", static_cast<int>(names.size()),
                                  texts.data(), names.data()),
          "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { library_.destroy_program(&program_); }

  /// The code for an architecture, such as 90.
  std::vector<char> compile(int architecture) {
    const std::string target = fmt::format("--gpu-architecture=sm_{}", architecture);
    // Ops are rounded one by one, as in kernels of their own. Files of formulas have functions that other compilers take for host code.
    const char* const options[] = {target.c_str(), "--std=c++20", "--fmad=false",
                                   "--device-as-default-execution-space"};
    if (const nvrtcResult status = library_.compile_program(program_, std::size(options), options);
        status != NVRTC_SUCCESS) {
      size_t size = 0;
      check(library_.get_program_log_size(program_, &size), "nvrtcGetProgramLogSize");
      std::string log(size, '\0');
      check(library_.get_program_log(program_, log.data()), "nvrtcGetProgramLog");
      const std::string text =
          fmt::format("nvrtcCompileProgram failed: {}\n{}", library_.get_error_string(status), log.c_str());
      if (status == NVRTC_ERROR_OUT_OF_MEMORY) throw Error(ErrorCode::device, text);
      throw Refusal(ErrorCode::device, text);
    }
    size_t size = 0;
    check(library_.get_cubin_size(program_, &size), "nvrtcGetCUBINSize");
    std::vector<char> code(size);
    check(library_.get_cubin(program_, code.data()), "nvrtcGetCUBIN");
    return code;
  }

 private:
  const NvrtcLibrary& library_ = *nvrtc_library();
  nvrtcProgram program_ = nullptr;
};

int architecture_of(int device) {
  thread_local std::pair<int, int> last{-1, 0};
  if (last.first == device) return last.second;
  int major = 0, minor = 0;
  cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  cuda::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  last = {device, 10 * major + minor};
  return last.second;
}

bool compiles_for(int architecture, const std::string& source) {
  try {
    Program(source, kSourceFiles).compile(architecture);
    return true;
  } catch (const Error&) { return false; }
}

/// A kernel, once it is compiled, or refused.
struct Kernel {
  std::mutex mutex;
  const void* function = nullptr;
  std::array<std::atomic<bool>, 256> is_loaded = {};  // on each device
  std::atomic<bool> is_refused = false;
};

/// That of a source, for all threads and until the process ends.
Kernel& kernel_of(int architecture, const std::string& source) {
  static std::mutex mutex;
  static auto& kernels = *new std::unordered_map<std::string, Kernel>;
  const std::lock_guard lock(mutex);
  return kernels[fmt::format("{} {}", architecture, source)];
}

}  // namespace

bool compiles_at_runtime(int device, const std::string& probe) {
#if CUDART_VERSION < 12080  // which has no cudaLibraryLoadData
  return static_cast<void>(device), static_cast<void>(probe), false;
#else
  if (nvrtc_library() == nullptr) return false;
  static std::mutex mutex;
  static std::map<int, bool> known;
  const int architecture = architecture_of(device);
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = known.try_emplace(architecture, false);
  if (is_new) at->second = compiles_for(architecture, probe);
  return at->second;
#endif
}

namespace {

/// While one lives, this thread may load code though it records a graph: nothing of that waits for what is recorded.
class UnsafeCalls {
 public:
  UnsafeCalls() { exchange(); }
  ~UnsafeCalls() { exchange(); }
  UnsafeCalls(const UnsafeCalls&) = delete;
  UnsafeCalls& operator=(const UnsafeCalls&) = delete;

 private:
  void exchange() { ignore(cudaThreadExchangeStreamCaptureMode(&other_)); }
  cudaStreamCaptureMode other_ = cudaStreamCaptureModeRelaxed;
};

#if CUDART_VERSION >= 12080
const void* function_of(const std::vector<char>& code, const char* name) {
  cudaLibrary_t library = nullptr;
  cuda::check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
              "cudaLibraryLoadData");
  cudaKernel_t function = nullptr;
  cuda::check(cudaLibraryGetKernel(&function, library, name), "cudaLibraryGetKernel");
  return reinterpret_cast<const void*>(function);
}
#else
const void* function_of(const std::vector<char>&, const char*) { return nullptr; }
#endif

/// As compile_kernel, for the current device.
const void* compile_kernel_for(int device, const std::string& source, const char* name) {
  const int architecture = architecture_of(device);
  Kernel& kernel = kernel_of(architecture, source);
  if (kernel.is_refused) return nullptr;
  std::atomic<bool>& is_loaded = kernel.is_loaded[static_cast<size_t>(device)];
  if (is_loaded) return kernel.function;  // without waiting for who records
  // Code may be loaded in a way that disturbs the recordings of other threads. Who records has the first lock already.
  const std::lock_guard recording(recording_mutex());
  const std::lock_guard lock(kernel.mutex);
  if (kernel.is_refused) return nullptr;
  const UnsafeCalls allowed;
  try {
    if (kernel.function == nullptr)
      kernel.function = function_of(Program(source, kSourceFiles).compile(architecture), name);
  } catch (const Refusal&) {
    kernel.is_refused = true;
    throw;
  }
  cudaFuncAttributes
      attributes;  // to be asked for them, the kernel is loaded, which its first launch would do otherwise
  cuda::check(cudaFuncGetAttributes(&attributes, kernel.function), "cudaFuncGetAttributes");
  is_loaded = true;
  return kernel.function;
}

}  // namespace

const void* compile_kernel(const std::string& source, const char* name) {
  int device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  try {
    return compile_kernel_for(device, source, name);
  } catch (const Refusal& refusal) {
    // Without the locks: what receives the message may call functions of this library.
    log_message(fmt::format("ops of a fused loop are computed one by one, because {}", refusal.what()));
    return nullptr;
  }
}

}  // namespace shard::cuda
