// Copies of matrices with rows and columns exchanged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace shard::cpu {

namespace detail {

/// The same for at most one cache line of rows and of columns. The block goes through a buffer, so
/// that each cache line of `in` is read at once and each of `out` written at once: where the steps
/// are powers of two, a cache cannot hold all lines of a block.
template <class T>
void transpose_block(const T* in, int64_t in_step, T* out, int64_t out_step, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = 64 / sizeof(T);
  T block[kSide][kSide];
  if (rows == kSide && columns == kSide) {
    for (int64_t r = 0; r < kSide; ++r) std::memcpy(block[r], in + r * in_step, sizeof(block[r]));
    for (int64_t c = 0; c < kSide; ++c) {
      T line[kSide];
      for (int64_t r = 0; r < kSide; ++r) line[r] = block[r][c];
      std::memcpy(out + c * out_step, line, sizeof(line));
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) std::copy_n(in + r * in_step, columns, block[r]);
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) out[c * out_step + r] = block[r][c];
}

}  // namespace detail

/// out[c * out_step + r] = in[r * in_step + c] for each r below `rows` and c below `columns`, in
/// tiles whose pages have room in the TLB.
template <class T>
void transpose_matrix(const T* in, int64_t in_step, T* out, int64_t out_step, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = 64 / sizeof(T), kTile = std::max<int64_t>(kSide, 64);
  for (int64_t tile = 0; tile < rows; tile += kTile) {
    for (int64_t strip = 0; strip < columns; strip += kTile) {
      for (int64_t r = tile; r < std::min(tile + kTile, rows); r += kSide) {
        for (int64_t c = strip; c < std::min(strip + kTile, columns); c += kSide) {
          detail::transpose_block(in + r * in_step + c, in_step, out + c * out_step + r, out_step,
                                  std::min(kSide, rows - r), std::min(kSide, columns - c));
        }
      }
    }
  }
}

}  // namespace shard::cpu
