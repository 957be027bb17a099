// Products of tiles by the tensor cores, with sums in float: of 16-bit floats (mma.m16n8k16) and of tf32 (mma.m16n8k8). Each function that
// is an instruction has a portable variant, which the model runs and older devices, and which a test compares with the instruction where
// there is a device.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

/// Two numbers as neighbouring elements in a register; what rounding has left of them stays.
template <class T>
__device__ __forceinline__ unsigned take_pair(float& low, float& high) {
  const T pair[2] = {store<T>(low), store<T>(high)};
  low -= load(pair[0]);
  high -= load(pair[1]);
  unsigned word = 0;
  memcpy(&word, pair, sizeof(word));
  return word;
}

/// Two neighbouring elements in a register as floats.
template <class T>
__device__ __forceinline__ void unpack_pair(unsigned word, float (&values)[2]) {
  T pair[2];
  memcpy(static_cast<void*>(pair), &word, sizeof(word));
  values[0] = load(pair[0]);
  values[1] = load(pair[1]);
}

/// x[0] * y[0] + x[1] * y[1] of two pairs.
template <class T>
__device__ inline float multiply_pairs(unsigned x, unsigned y) {
  float a[2], b[2];
  unpack_pair<T>(x, a);
  unpack_pair<T>(y, b);
  return a[0] * b[0] + a[1] * b[1];
}

/// What a lane has of the factors of a product.
template <class Word>
struct Factors {
  Word a[4], b[2];

  Factors() = default;
  __device__ Factors(const Word (&its_a)[4], const Word (&its_b)[2])
      : a{its_a[0], its_a[1], its_a[2], its_a[3]}, b{its_b[0], its_b[1]} {}
};

/// As multiply_add below.
template <class T>
__device__ __forceinline__ void multiply_add_portable(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane / 4 * 4, column = lane % 4 * 8;
  with_lanes(Factors<unsigned>(a, b), [&](const auto& of_lane) {
    Factors<unsigned> rows[4], left[4], right[4];  // rows g and g + 8, and columns 2t and 2t + 1
    for (int t = 0; t < 4; ++t) {
      rows[t] = of_lane(row + t);
      left[t] = of_lane(column + t);
      right[t] = of_lane(column + 4 + t);
    }
    for (int half = 0; half < 2; ++half) {
      for (int t = 0; t < 4; ++t) {
        const unsigned x = rows[t].a[2 * half], y = rows[t].a[2 * half + 1];
        d[0] += multiply_pairs<T>(x, left[t].b[half]);
        d[1] += multiply_pairs<T>(x, right[t].b[half]);
        d[2] += multiply_pairs<T>(y, left[t].b[half]);
        d[3] += multiply_pairs<T>(y, right[t].b[half]);
      }
    }
  });
}

/// d [16, 8] += a [16, 16] * b [16, 8], which a warp shares. With g = lane / 4 and t = lane % 4, a lane has of a the columns 2t and
/// 2t + 1 of the rows g and g + 8, then 2t + 8 and 2t + 9 of them; of b the rows 2t and 2t + 1 of column g, then 2t + 8 and 2t + 9;
/// and of d the columns 2t and 2t + 1 of row g, then of row g + 8. All lanes call it.
template <class T, bool Portable = false>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Portable) {
    multiply_add_portable<T>(d, a, b);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  multiply_add_portable<T>(d, a, b);
#endif
}

__device__ __forceinline__ unsigned bits_of(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/// The bits of a number that tf32 has: the exponents of float, and 11 significant bits. What is left of it stays; nothing of what is not
/// finite.
__device__ __forceinline__ float take_tf32(float& value) {
  const unsigned bits = bits_of(value) & 0xffffe000u;
  float part;
  memcpy(&part, &bits, sizeof(part));
  value = part - part == 0.0f ? value - part : 0.0f;
  return part;
}

/// As multiply_add of tf32 below.
__device__ __forceinline__ void multiply_add_portable(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane / 4 * 4, column = lane % 4 * 8;
  with_lanes(Factors<float>(a, b), [&](const auto& of_lane) {
    for (int t = 0; t < 4; ++t) {
      const Factors<float> rows = of_lane(row + t), columns[2] = {of_lane(column + t), of_lane(column + 4 + t)};
      for (int half = 0; half < 2; ++half) {
        for (int next = 0; next < 2; ++next)
          d[2 * half + next] += rows.a[2 * half] * columns[next].b[0] + rows.a[2 * half + 1] * columns[next].b[1];
      }
    }
  });
}

/// d [16, 8] += a [16, 8] * b [8, 8], which a warp shares, of numbers that tf32 has. A lane has of a the columns 2t and 2t + 1 of row g,
/// then of row g + 8; of b the rows 2t and 2t + 1 of column g; and d as above. All lanes call it.
template <bool Portable = false>
__device__ __forceinline__ void multiply_add(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Portable) {
    multiply_add_portable(d, a, b);
  } else {
    // The instruction calls these columns, and these rows of b, t and t + 4, which makes no difference to the sums.
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(bits_of(a[0])), "r"(bits_of(a[2])), "r"(bits_of(a[1])), "r"(bits_of(a[3])), "r"(bits_of(b[0])),
          "r"(bits_of(b[1])));
  }
#else
  multiply_add_portable(d, a, b);
#endif
}

/// Two neighbouring elements of a line in shared memory, as bits.
__device__ __forceinline__ unsigned read_pair(const uint16_t* at) { return *reinterpret_cast<const unsigned*>(at); }

/// As read_matrices below.
template <bool Transposed>
__device__ __forceinline__ void read_matrices_portable(const uint16_t* at, int step, unsigned (&matrices)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = 0; i < 4; ++i) {
    const uint16_t* const matrix = at + i % 2 * 8 * step + i / 2 * 8;
    if constexpr (Transposed) {
      const uint16_t* const from = matrix + lane % 4 * 2 * step + lane / 4;
      matrices[i] = unsigned{from[0]} | unsigned{from[step]} << 16;
    } else {
      matrices[i] = read_pair(matrix + lane / 4 * step + lane % 4 * 2);
    }
  }
}

/// The four matrices of 8 lines and 8 columns in 16 lines of shared memory, `step` apart, from `at` on, at a multiple of 16 bytes: the
/// upper left, lower left, upper right and lower right one. A lane gets the columns 2t and 2t + 1 of line g of each, or, transposed, the
/// lines 2t and 2t + 1 of column g, so that together they are factor a of multiply_add for these lines, or, transposed, two factors b
/// for these columns. All lanes call it.
template <bool Transposed, bool Portable = false>
__device__ __forceinline__ void read_matrices(const uint16_t* at, int step, unsigned (&matrices)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  [[maybe_unused]] const unsigned line =
      static_cast<unsigned>(__cvta_generic_to_shared(at + lane % 16 * step + lane / 16 * 8));
  if constexpr (Portable) {
    read_matrices_portable<Transposed>(at, step, matrices);
  } else if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(line)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(line)
                 : "memory");
  }
#else
  read_matrices_portable<Transposed>(at, step, matrices);
#endif
}

/// One access of a device, of which the model sees each word.
struct alignas(16) Words {
  unsigned values[4];
};

/// As copy_16_bytes below, but at once.
__device__ __forceinline__ void copy_16_bytes_portable(void* to, const void* from, bool is_there) {
  const Words zeros = {}, &words = is_there ? *static_cast<const Words*>(from) : zeros;
  for (int i = 0; i < 4; ++i) static_cast<Words*>(to)->values[i] = words.values[i];
}

/// Begins to copy 16 bytes, or zeros, to shared memory; both addresses are multiples of 16.
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from, bool is_there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
#else
  copy_16_bytes_portable(to, from, is_there);
#endif
}

/// Waits for the copies that this thread began; a barrier then shows them to the others.
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Two raised to x; within 2^-22 of it on a device.
__device__ __forceinline__ float power_of_2(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::exp2(x);
#endif
}

}  // namespace shard::cuda
