// What kernels of fused loops (fused_loop.cc) are made of besides formulas.
#pragma once

#include "shard/kernels/cuda/convert.cuh"
#include "shard/kernels/cuda/formula.cuh"

namespace shard::cuda {

/// The addresses, lengths and numbers of a loop.
struct LoopWords {
  static constexpr int kMost = 120;
  uint64_t words[kMost];
};

template <class T>
__device__ T* pointer(uint64_t word) {
  return reinterpret_cast<T*>(word);
}

/// Numbers of a formula that computes in V from the bits of two C.
template <class V, class C>
__device__ Numbers<V> numbers_of(uint64_t first, uint64_t second) {
  C values[2];
  memcpy(&values[0], &first, sizeof(C));
  memcpy(&values[1], &second, sizeof(C));
  return {V(values[0]), V(values[1])};
}

template <class T>
__device__ T choose(bool condition, T x, T y) {
  return condition ? x : y;
}

}  // namespace shard::cuda
