// The numbers of a device: conversions, and accesses of several elements. Kernels that are compiled when the library runs
// (fused_loop.cc) include this file too, so that it needs no other header of the library.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#define SHARD_FORMULA_INLINE __device__ inline  // what formulas (kernels/formulas) are declared with

namespace shard::cuda {

/// The type of arithmetic: float for 16-bit floats, else T itself.
template <class T>
struct MathType {
  using type = T;
};
template <>
struct MathType<__nv_bfloat16> {
  using type = float;
};
template <>
struct MathType<__half> {
  using type = float;
};
template <class T>
using math_t = typename MathType<T>::type;

template <class T>
__host__ __device__ math_t<T> load(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __bfloat162float(value);
  else if constexpr (std::is_same_v<T, __half>) return __half2float(value);
  else return value;
}

template <class T>
__host__ __device__ __forceinline__ T store(math_t<T> value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(value);
  else if constexpr (std::is_same_v<T, __half>) return __float2half_rn(value);
  else return value;
}

/// A number as a T, rounded once: a double that becomes a 16-bit float is rounded to odd on the way, as core/convert.h does.
template <class T, class M>
__device__ __forceinline__ T round_to(M value) {
  if constexpr (std::is_same_v<M, double> && std::is_same_v<math_t<T>, float> && !std::is_same_v<T, float>) {
    float nearest = static_cast<float>(value);
    if (fabsf(nearest) <= 3.402823466e38f && static_cast<double>(nearest) != value) {
      unsigned bits = 0;
      memcpy(&bits, &nearest, sizeof(bits));
      if (fabs(static_cast<double>(nearest)) > fabs(value)) --bits;
      bits |= 1u;
      memcpy(&nearest, &bits, sizeof(bits));
    }
    return store<T>(nearest);
  } else {
    return store<T>(static_cast<math_t<T>>(value));
  }
}

/// The words in which `bytes` bytes are accessed: at most 16 bytes, and as large as they can be.
template <int bytes>
using AccessWord = std::conditional_t<
    bytes >= 16, uint4,
    std::conditional_t<
        bytes == 8, uint2,
        std::conditional_t<bytes == 4, unsigned, std::conditional_t<bytes == 2, unsigned short, unsigned char>>>>;

/// Elements [i * N, (i + 1) * N) of memory that is aligned to so many elements, or to 16 bytes, in accesses as large
/// as they can be, which do not stay in the caches.
template <int N, class T>
__device__ void load_elements(const T* from, int64_t i, T (&values)[N]) {
  using Word = AccessWord<N* static_cast<int>(sizeof(T))>;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  static_assert(kWords * sizeof(Word) == N * sizeof(T));
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const Word word = __ldcs(reinterpret_cast<const Word*>(from) + i * kWords + w);
    memcpy(reinterpret_cast<char*>(values) + w * sizeof(Word), &word, sizeof(Word));
  }
}

template <int N, class T>
__device__ void store_elements(T* to, int64_t i, const T (&values)[N]) {
  using Word = AccessWord<N* static_cast<int>(sizeof(T))>;
  constexpr int kWords = static_cast<int>(N * sizeof(T) / sizeof(Word));
  static_assert(kWords * sizeof(Word) == N * sizeof(T));
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    Word word;
    memcpy(&word, reinterpret_cast<const char*>(values) + w * sizeof(Word), sizeof(Word));
    __stcs(reinterpret_cast<Word*>(to) + i * kWords + w, word);
  }
}

}  // namespace shard::cuda
