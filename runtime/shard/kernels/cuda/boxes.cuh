// Boxes of four numbers, which are read and written together where the first of all boxes is aligned.
#pragma once

#include <cstdint>
#include <cstring>

#include "shard/kernels/cuda/numbers.cuh"

namespace shard::cuda {

/// The words of a box.
template <class T>
struct BoxWords {
  using Word = AccessWord<4 * static_cast<int>(sizeof(T))>;
  static constexpr int kCount = static_cast<int>(4 * sizeof(T) / sizeof(Word));
  static __device__ bool fit(const T* boxes) { return reinterpret_cast<uintptr_t>(boxes) % sizeof(Word) == 0; }
};

/// Box i. It stays in the caches, because others read it too.
template <class T>
__device__ void load_box(const T* boxes, int64_t i, math_t<T> (&box)[4]) {
  using Words = BoxWords<T>;
  T numbers[4];
  if (Words::fit(boxes)) {
#pragma unroll
    for (int w = 0; w < Words::kCount; ++w) {
      const auto word = reinterpret_cast<const typename Words::Word*>(boxes)[i * Words::kCount + w];
      memcpy(reinterpret_cast<char*>(numbers) + w * sizeof(word), &word, sizeof(word));
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) numbers[k] = boxes[4 * i + k];
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) box[k] = load(numbers[k]);
}

template <class T>
__device__ void store_box(T* boxes, int64_t i, const math_t<T> (&box)[4]) {
  T numbers[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) numbers[k] = store<T>(box[k]);
  if (BoxWords<T>::fit(boxes)) return store_elements<4>(boxes, i, numbers);
#pragma unroll
  for (int k = 0; k < 4; ++k) boxes[4 * i + k] = numbers[k];
}

}  // namespace shard::cuda
