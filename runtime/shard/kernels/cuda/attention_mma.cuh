// Products of tiles of 16-bit floats for attention on CUDA by the tensor cores, for widths of up to 128. Each warp has 16 rows of
// queries or keys, whose scores and sums are in its registers; the rows that all of them are multiplied by, the terms of sums, are
// in shared memory (Dao 2023).
#pragma once

#include "shard/kernels/cuda/attention.cuh"
#include "shard/kernels/cuda/mma.cuh"

/// For what is rarely called, so that its registers are not those of its caller.
#ifdef __CUDACC__
#define SHARD_NO_INLINE __noinline__
#else
#define SHARD_NO_INLINE __attribute__((noinline))
#endif

namespace shard::cuda {

inline constexpr int kMmaWarps = 4, kMmaThreads = kMmaWarps * kWarp;
inline constexpr int kMmaRows = 16 * kMmaWarps;  // of a block
inline constexpr int64_t kMmaWidth = 128;        // at most
inline constexpr float kLog2OfE = 1.44269504f, kLogOf2 = 0.693147181f;

/// Rows as bits of 16-bit floats. Lines are padded, so that lanes read different banks.
template <int Width, int Terms>
struct alignas(16) TermStage {
  static constexpr int kStep = Width + 8;
  uint16_t lines[Terms][kStep];
};

/// The place of a lane in the tiles of multiply_add.
struct LanePlace {
  int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;

  __device__ LanePlace() {}
};

template <class T>
__device__ bool is_finite(uint16_t bits) {
  constexpr unsigned kExponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80u : 0x7c00u;
  return (bits & kExponent) != kExponent;
}

/// Eight elements of row `row` from `column` on, and zeros around the rows.
template <class T>
__device__ void load_eight(const TileRows<T>& from, int row, int column, bool is_aligned, uint16_t (&bits)[8]) {
  const auto* const line = reinterpret_cast<const uint16_t*>(from.data) + row * from.step;
  if (is_aligned && row < from.count && column + 8 <= from.width) {
    const uint4 words = *reinterpret_cast<const uint4*>(line + column);
    memcpy(bits, &words, sizeof(words));
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) bits[i] = row < from.count && column + i < from.width ? line[column + i] : uint16_t{0};
}

/// Begins to fill the stage with rows that are aligned, and zeros around them; wait_for_copies() ends it.
template <int Width, int Terms, class T>
__device__ __forceinline__ void copy_terms(TermStage<Width, Terms>& stage, const TileRows<const T>& from) {
  constexpr int kChunks = Width / 8,
                kStep = kMmaThreads / kChunks;  // chunks of a row, and rows that are copied at once
  const int column = static_cast<int>(threadIdx.x) % kChunks * 8;
  int row = static_cast<int>(threadIdx.x) / kChunks;
  const T* line = from.data + row * from.step + column;
  const int rows = column < from.width ? from.count : 0;
#pragma unroll
  for (int i = 0; i < Terms / kStep; ++i, row += kStep, line += kStep * from.step)
    copy_16_bytes(&stage.lines[row][column], row < rows ? line : from.data, row < rows);
}

/// Fills the stage. Returns whether an element that this thread copied is not finite.
template <int Width, int Terms, class T>
__device__ bool load_terms(TermStage<Width, Terms>& stage, const TileRows<const T>& from, bool is_aligned) {
  constexpr int kChunks = Width / 8;
  bool found = false;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Terms * kChunks; i += kMmaThreads) {
    const int row = i / kChunks, column = i % kChunks * 8;
    uint16_t bits[8];
    load_eight(from, row, column, is_aligned, bits);
    Words& to = *reinterpret_cast<Words*>(&stage.lines[row][column]);
#pragma unroll
    for (int word = 0; word < 4; ++word)
      to.values[word] = unsigned{bits[2 * word]} | unsigned{bits[2 * word + 1]} << 16;
#pragma unroll
    for (int d = 0; d < 8; ++d) found = found || !is_finite<T>(bits[d]);
  }
  return found;
}

/// Whether products are made of this column. Those beyond the width are zeros, and only the model, which takes time, leaves them out.
__device__ inline bool is_multiplied(int column, int64_t width) {
#ifdef __CUDA_ARCH__
  return true;
#else
  return column < width;
#endif
}

/// A warp's 16 rows as factors a of multiply_add.
template <int Width>
using RowFactors = unsigned[Width / 16][4];

/// The rows from row `first` of the tile on.
template <int Width, class T>
__device__ void load_factors(RowFactors<Width>& factors, const TileRows<const T>& from, int first) {
  const LanePlace lane;
#pragma unroll
  for (int k = 0; k < Width / 16; ++k) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = first + lane.g + part % 2 * 8, column = k * 16 + part / 2 * 8 + lane.t * 2;
      const auto* const line = reinterpret_cast<const uint16_t*>(from.data) + row * from.step + column;
      const bool is_row = row < from.count;
      const unsigned low = is_row && column < from.width ? line[0] : 0u,
                     high = is_row && column + 1 < from.width ? line[1] : 0u;
      factors[k][part] = low | high << 16;
    }
  }
}

/// Numbers of a lane for two rows and all terms, or all columns, in the layout of multiply_add.
template <int Columns>
using LaneTile = float[Columns / 8][4];

/// products += the products of rows and terms, of `width` columns. `factors_of(k)` has the factors of 16 columns for each tile of rows.
template <class T, int Tiles, int Width, int Terms, class F>
__device__ __forceinline__ void multiply_terms(const F& factors_of, const TermStage<Width, Terms>& terms, int64_t width,
                                               LaneTile<Terms> (&products)[Tiles]) {
#pragma unroll
  for (int k = 0; k < Width / 16; ++k) {
    if (!is_multiplied(k * 16, width)) continue;
    unsigned rows[Tiles][4];
    factors_of(k, rows);
#pragma unroll
    for (int n = 0; n < Terms / 8; n += 2) {
      unsigned matrices[4];
      read_matrices<false>(&terms.lines[n * 8][k * 16], terms.kStep, matrices);
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        multiply_add<T>(products[tile][n], rows[tile], {matrices[0], matrices[2]});
        multiply_add<T>(products[tile][n + 1], rows[tile], {matrices[1], matrices[3]});
      }
    }
  }
}
template <class T, int Width, int Terms>
__device__ __forceinline__ void multiply_terms(const RowFactors<Width>& rows, const TermStage<Width, Terms>& terms,
                                               int64_t width, LaneTile<Terms> (&products)[1]) {
  const auto factors_of = [&](int k, unsigned(&factors)[1][4]) {
#pragma unroll
    for (int part = 0; part < 4; ++part) factors[0][part] = rows[k][part];
  };
  multiply_terms<T, 1>(factors_of, terms, width, products);
}

/// How many factors of T a weight is the sum of: those of float16 are as precise as floats, those of bfloat16 are rounded, as on the
/// CPU.
template <class T>
inline constexpr int kWeightParts = std::is_same_v<T, __half> ? 2 : 1;

/// sums += weights * terms, of `width` columns, for each tile of rows.
template <class T, int Tiles, int Width, int Terms>
__device__ __forceinline__ void add_terms(LaneTile<Width> (&sums)[Tiles], const LaneTile<Terms> (&weights)[Tiles],
                                          const TermStage<Width, Terms>& terms, int64_t width) {
#pragma unroll
  for (int k = 0; k < Terms / 16; ++k) {
    unsigned factors[Tiles][kWeightParts<T>][4];
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        float low = weights[tile][2 * k + pair / 2][pair % 2 * 2],
              high = weights[tile][2 * k + pair / 2][pair % 2 * 2 + 1];
#pragma unroll
        for (int part = 0; part < kWeightParts<T>; ++part) factors[tile][part][pair] = take_pair<T>(low, high);
      }
    }
#pragma unroll
    for (int n = 0; n < Width / 8; n += 2) {
      if (!is_multiplied(n * 8, width)) continue;
      unsigned matrices[4];
      read_matrices<true>(&terms.lines[k * 16][n * 8], terms.kStep, matrices);
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
        for (int part = 0; part < kWeightParts<T>; ++part) {
          multiply_add<T>(sums[tile][n], factors[tile][part], {matrices[0], matrices[1]});
          multiply_add<T>(sums[tile][n + 1], factors[tile][part], {matrices[2], matrices[3]});
        }
      }
    }
  }
}

/// The same for weights of any size, such as gradients of scores, which may be outside of the range of float16: each is the sum of two
/// numbers of tf32.
template <class T, int Width, int Terms>
__device__ __forceinline__ void add_wide_terms(LaneTile<Width>& sums, const LaneTile<Terms>& weights,
                                               const TermStage<Width, Terms>& terms, int64_t width) {
#pragma unroll
  for (int k = 0; k < Terms / 16; ++k) {
    float factors[2][2][4];  // of eight terms each, in two parts
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float weight = weights[2 * k + half][i];
        factors[half][0][i] = take_tf32(weight);
        factors[half][1][i] = take_tf32(weight);
      }
    }
#pragma unroll
    for (int n = 0; n < Width / 8; n += 2) {
      if (!is_multiplied(n * 8, width)) continue;
      unsigned matrices[4];
      read_matrices<true>(&terms.lines[k * 16][n * 8], terms.kStep, matrices);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float of_columns[2];
        unpack_pair<T>(matrices[i], of_columns);
        multiply_add(sums[n + i / 2], factors[i % 2][0], of_columns);
        multiply_add(sums[n + i / 2], factors[i % 2][1], of_columns);
      }
    }
  }
}

/// The same where terms are not finite: what has weight 0 adds nothing, so that a query does not see what is hidden from it.
template <class T, int Width, int Terms>
__device__ void add_terms_that_weigh(LaneTile<Width>& sums, const LaneTile<Terms>& weights,
                                     const TermStage<Width, Terms>& terms) {
  const LanePlace lane;
#pragma unroll
  for (int part = 0; part < Terms / 4; ++part) {
    const int c = part % 2;
    for (int t = 0; t < 4; ++t) {  // the lane that has the weights of this term
      const uint16_t* const line = &terms.lines[part / 2 * 8 + t * 2 + c][lane.t * 2];
      const float low = __shfl_sync(kAllLanes, weights[part / 2][c], lane.g * 4 + t),
                  high = __shfl_sync(kAllLanes, weights[part / 2][2 + c], lane.g * 4 + t);
#pragma unroll
      for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
        for (int d = 0; d < 2; ++d) {
          const uint16_t bits = line[n * 8 + d];
          T value;
          memcpy(static_cast<void*>(&value), &bits, sizeof(value));
          if (low != 0.0f) sums[n][d] += low * load(value);
          if (high != 0.0f) sums[n][2 + d] += high * load(value);
        }
      }
    }
  }
}

/// Stores result(sum, which of the two rows of the lane) for the rows from row `first` of the tile on.
template <int Width, class T, class F>
__device__ void store_tile(const LaneTile<Width>& sums, const TileRows<T>& to, int first, F result) {
  const LanePlace lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane.g + half * 8;
    if (row >= to.count) continue;
    T* const line = to.data + row * to.step;
#pragma unroll
    for (int n = 0; n < Width / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = n * 8 + lane.t * 2 + c;
        if (column < to.width) line[column] = store<T>(result(sums[n][2 * half + c], half));
      }
    }
  }
}

/// Whether rows of x begin at multiples of 16 bytes.
inline bool rows_are_aligned(const DenseTensor& x) {
  return reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0 && x.dims()[3] % 8 == 0;
}

}  // namespace shard::cuda
