// The language of kernels, of the host model: qualifiers, indices, barriers, shuffles, atomic operations, vector types.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../access.h"
#include "cuda_runtime_api.h"

// Clang makes a call of memcpy of each copy of a struct, such as a word of 16 bytes or a bfloat16, and puts no call of its own before
// it: the model answers these calls in files of kernels (access.cc).
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
__asm__("memcpy = cuda_host_memcpy\nmemmove = cuda_host_memmove\nmemset = cuda_host_memset");
#endif
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define CUDA_HOST_UNCHECKED __attribute__((no_sanitize("thread")))

#define threadIdx (::cuda_host::position.thread)
#define blockIdx (::cuda_host::position.block)
#define blockDim (::cuda_host::position.threads)
#define gridDim (::cuda_host::position.blocks)
inline constexpr int warpSize = ::cuda_host::kWarpSize;

#define __syncthreads() ::cuda_host::barrier(__FILE__, __LINE__)
#define __syncthreads_count(value) ::cuda_host::barrier_count(value, __FILE__, __LINE__)
#define __syncthreads_or(value) (::cuda_host::barrier_count(value, __FILE__, __LINE__) != 0)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

inline void __syncwarp(unsigned mask = 0xffffffffu) { ::cuda_host::meet_and_order(mask); }
inline void __threadfence() {}
inline void __threadfence_system() {}

namespace cuda_host {

template <class T>
CUDA_HOST_UNCHECKED T shuffle(const char* what, unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const Lanes& lanes = meet(mask, bits, what);
  if ((lanes.present >> source & 1u) == 0) fail_lane(what, source);
  T result;
  std::memcpy(&result, &lanes.values[source], sizeof(T));
  return result;
}

/// Calls use(values), where values(i) is what lane i gave as `mine`.
template <class T, class Use>
CUDA_HOST_UNCHECKED void with_lanes(unsigned mask, const T& mine, const Use& use) {
  static_assert(std::is_trivially_copyable_v<T>);
  const Lanes& lanes = meet(mask, reinterpret_cast<uint64_t>(&mine), "with_lanes");
  uint64_t reads = 0;
  use([&](int lane) {
    T value;
    copy_of_lane(lanes, lane, &value, sizeof(T));
    ++reads;
    return value;
  });
  end_reads_of_lanes(mask, reads);
}

template <class T>
CUDA_HOST_UNCHECKED T load(const T* at) {
  access(at, sizeof(T), Kind::read, __builtin_return_address(0));
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
CUDA_HOST_UNCHECKED void store(T* at, const T& value) {
  access(at, sizeof(T), Kind::write, __builtin_return_address(0));
  std::memcpy(at, &value, sizeof(T));
}

template <class T, class F>
CUDA_HOST_UNCHECKED T update(T* at, F change) {
  access(at, sizeof(T), Kind::atomic, __builtin_return_address(0));
  const T before = *at;
  *at = change(before);
  return before;
}

}  // namespace cuda_host

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = cuda_host::lane();
  return cuda_host::shuffle("__shfl_sync", mask, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_host::lane();
  const int source = (lane & (width - 1)) + static_cast<int>(delta) < width ? lane + static_cast<int>(delta) : lane;
  return cuda_host::shuffle("__shfl_down_sync", mask, value, source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = cuda_host::lane();
  const int source = (lane & (width - 1)) >= static_cast<int>(delta) ? lane - static_cast<int>(delta) : lane;
  return cuda_host::shuffle("__shfl_up_sync", mask, value, source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = cuda_host::lane();
  const int source = lane ^ bits;
  return cuda_host::shuffle("__shfl_xor_sync", mask, value, source / width <= lane / width ? source : lane);
}
CUDA_HOST_UNCHECKED inline unsigned __ballot_sync(unsigned mask, bool value) {
  const cuda_host::Lanes& lanes = cuda_host::meet(mask, value ? 1 : 0, "__ballot_sync");
  unsigned result = 0;
  for (int i = 0; i < cuda_host::kWarpSize; ++i) {
    if ((lanes.present >> i & 1u) != 0 && lanes.values[i] != 0) result |= 1u << i;
  }
  return result;
}
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, !value) == 0; }
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }

template <class T>
T __ldg(const T* at) {
  return cuda_host::load(at);
}
template <class T>
T __ldcs(const T* at) {
  return cuda_host::load(at);
}
template <class T>
void __stcs(T* at, T value) {
  cuda_host::store(at, value);
}

template <class T>
T atomicAdd(T* at, T value) {
  return cuda_host::update(at, [&](T before) { return static_cast<T>(before + value); });
}
template <class T>
T atomicMax(T* at, T value) {
  return cuda_host::update(at, [&](T before) { return std::max(before, value); });
}
template <class T>
T atomicMin(T* at, T value) {
  return cuda_host::update(at, [&](T before) { return std::min(before, value); });
}
template <class T>
T atomicOr(T* at, T value) {
  return cuda_host::update(at, [&](T before) { return static_cast<T>(before | value); });
}
template <class T>
T atomicExch(T* at, T value) {
  return cuda_host::update(at, [&](T) { return value; });
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
  return cuda_host::update(at, [&](T before) { return before == expected ? value : before; });
}

// CUDA's functions of these names are in the global namespace, and take mixed integers.
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double normcdf(double x) { return static_cast<double>(0.5L * std::erfc(-0.70710678118654752440L * x)); }
inline float normcdff(float x) { return static_cast<float>(normcdf(x)); }

/// Of the one attribute there is.
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return cuda_host::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}

namespace cuda_host {

template <size_t, class T>
struct Argument {
  T value;
};
template <class Numbers, class... P>
struct Call;
/// A kernel and the arguments of a launch, which are copied as bytes, as CUDA does.
template <size_t... n, class... P>
struct Call<std::index_sequence<n...>, P...> : Argument<n, P>... {
  void (*kernel)(P...);

  Call(void (*called)(P...), const P&... arguments) : Argument<n, P>{arguments}..., kernel(called) {}
  static void run(const void* call) {
    const Call& self = *static_cast<const Call*>(call);
    self.kernel(static_cast<const Argument<n, P>&>(self).value...);
  }
};

template <class... P>
cudaError_t launch(const char* name, void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared,
                   cudaStream_t stream, const std::type_identity_t<P>&... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...));
  const Call<std::index_sequence_for<P...>, P...> call(kernel, arguments...);
  return launch(name, reinterpret_cast<const void*>(kernel), call.run, &call, sizeof(call), blocks, threads, shared,
                stream);
}

}  // namespace cuda_host
