// The language that kernels are written in: launches, shared memory and reductions over a warp or a block. nvcc compiles it for a
// device, the host compiler for the model of tests/cuda/host, which checks what a device does not.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "shard/core/cuda/cuda_call.cuh"
#include "shard/core/cuda/data_error.cuh"
#include "shard/core/op_context.h"

/// Declares an array or a struct in shared memory: SHARD_SHARED(tile, float[32][33]).
#ifdef __CUDACC__
#define SHARD_SHARED(name, ...) __shared__ std::type_identity_t<__VA_ARGS__> name
#else
#define SHARD_SHARED(name, ...)                                                               \
  static char name##_key;                                                                     \
  auto& name = *static_cast<std::type_identity_t<__VA_ARGS__>*>(::cuda_host::shared_variable( \
      &name##_key, sizeof(std::type_identity_t<__VA_ARGS__>), alignof(std::type_identity_t<__VA_ARGS__>), #name))
#endif

/// The struct in shared memory of a kernel that launch_with_shared() starts, which may be larger than what others declare.
#ifdef __CUDACC__
#define SHARD_DYNAMIC_SHARED(name, ...)   \
  extern __shared__ uint4 shared_words[]; \
  auto& name = *reinterpret_cast<__VA_ARGS__*>(shared_words)
#else
#define SHARD_DYNAMIC_SHARED(name, ...) auto& name = *static_cast<__VA_ARGS__*>(::cuda_host::dynamic_shared())
#endif

namespace shard::cuda {

inline constexpr int kThreads = 256;  // of a block, where a kernel has no reason for another number

inline int64_t divided_up(int64_t size, int64_t by) { return (size + by - 1) / by; }

/// Whether an argument of a kernel is a DataCheck, or has one (data_check.cuh).
template <class P>
concept checks_data = requires {
  typename P::IsDataCheck;
};

namespace detail {

template <class... P>
void launch(const OpContext& ctx, void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared_bytes,
            std::type_identity_t<P>... arguments) {
#ifdef __CUDACC__
  kernel<<<blocks, threads, shared_bytes, stream()>>>(arguments...);
#else
  ::cuda_host::launch(ctx.op, kernel, blocks, threads, shared_bytes, stream(), arguments...);
#endif
  check_launch(ctx.op);
  if constexpr ((checks_data<P> || ...)) checked_launch();
}

}  // namespace detail

/// Issues a kernel of the op to the stream of this thread. Throws Error(device) where the launch fails.
template <class... P>
void launch(const OpContext& ctx, void (*kernel)(P...), dim3 blocks, dim3 threads,
            std::type_identity_t<P>... arguments) {
  detail::launch(ctx, kernel, blocks, threads, 0, arguments...);
}
/// The same for a kernel with SHARD_DYNAMIC_SHARED(name, Shared).
template <class Shared, class... P>
void launch_with_shared(const OpContext& ctx, void (*kernel)(P...), dim3 blocks, dim3 threads,
                        std::type_identity_t<P>... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared))),
        "cudaFuncSetAttribute");
  detail::launch(ctx, kernel, blocks, threads, sizeof(Shared), arguments...);
}

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The value of the lane whose number differs in `bits`; T may have several words.
template <class T>
__device__ T shuffle_xor(T value, int bits) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0 || sizeof(T) < sizeof(unsigned));
  if constexpr (sizeof(T) < sizeof(unsigned)) {
    unsigned word = 0;
    memcpy(&word, &value, sizeof(T));
    word = __shfl_xor_sync(kAllLanes, word, bits);
    memcpy(&value, &word, sizeof(T));
    return value;
  } else {
    unsigned words[sizeof(T) / sizeof(unsigned)];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (unsigned& word : words) word = __shfl_xor_sync(kAllLanes, word, bits);
    memcpy(&value, words, sizeof(T));
    return value;
  }
}

/// Calls use(values), where values(i) is what lane i gave as `mine`, of whole words. All lanes call it, and `values` equally often.
template <class T, class Use>
__device__ __forceinline__ void with_lanes(const T& mine, const Use& use) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0);
#ifdef __CUDACC__
  use([&](int lane) {
    unsigned words[sizeof(T) / sizeof(unsigned)];
    memcpy(words, &mine, sizeof(T));
#pragma unroll
    for (unsigned& word : words) word = __shfl_sync(kAllLanes, word, lane);
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
  });
#else
  ::cuda_host::with_lanes(kAllLanes, mine, use);  // the lanes meet twice, and not for each word
#endif
}

/// Combines the values of all lanes of a warp; every lane gets the result. `combine` is commutative, so that all get equal bits.
template <class T, class F>
__device__ T warp_reduce(T value, F combine) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value = combine(value, shuffle_xor(value, bits));
  return value;
}

/// Combines the values of all threads of a block of `Threads` threads; every thread gets the result. All threads must call it.
template <int Threads, class T, class F>
__device__ T block_reduce(T value, F combine) {
  static_assert(Threads % kWarp == 0 && Threads <= kWarp * kWarp);
  value = warp_reduce(value, combine);
  if constexpr (Threads > kWarp) {
    SHARD_SHARED(of_warps, T[Threads / kWarp]);
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    __syncthreads();  // the last call has read them
    if (lane == 0) of_warps[warp] = value;
    __syncthreads();
    value = of_warps[0];
#pragma unroll
    for (int i = 1; i < Threads / kWarp; ++i) value = combine(value, of_warps[i]);
  }
  return value;
}

}  // namespace shard::cuda
