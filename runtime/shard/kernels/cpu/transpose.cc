// The copy behind transpose.h: tiles that are transposed in registers.
#include "shard/kernels/cpu/transpose.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace shard::cpu::detail {
namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line

/// 16 bytes of a row, a vector of every instruction set.
template <class Bits>
struct PackOf {
  typedef Bits type __attribute__((vector_size(16)));
};
template <class Bits>
using Pack = typename PackOf<Bits>::type;
template <class Bits>
constexpr int64_t kPackWidth = static_cast<int64_t>(sizeof(Pack<Bits>) / sizeof(Bits));

template <class Bits>
Pack<Bits> load(const Bits* from) {
  Pack<Bits> pack;
  std::memcpy(&pack, from, sizeof(pack));
  return pack;
}

template <class Bits>
void store_pack(Pack<Bits> pack, Bits* to, Store store) {
#ifdef __SSE2__
  if (store == Store::streamed) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), std::bit_cast<__m128i>(pack));
#else
  (void)store;
#endif
  std::memcpy(to, &pack, sizeof(pack));
}

/// The lower halves of two packs in turn, or the upper ones.
template <bool upper, class Bits, size_t... i>
[[gnu::always_inline]] inline Pack<Bits> interleaved(Pack<Bits> a, Pack<Bits> b, std::index_sequence<i...>) {
  constexpr size_t kWidth = sizeof...(i);
  return __builtin_shufflevector(a, b, (i / 2 + i % 2 * kWidth + (upper ? kWidth / 2 : 0))...);
}

/// Transposes as many packs as they have elements: each round interleaves the first half of them with the second.
template <class Bits, size_t... i>
[[gnu::always_inline]] inline void transpose_block(const Bits* in, int64_t in_step, Bits* out, int64_t out_step,
                                                   std::index_sequence<i...> lanes) {
  constexpr size_t kRows = sizeof...(i);
  Pack<Bits> rows[kRows] = {load(in + static_cast<int64_t>(i) * in_step)...};
#pragma GCC unroll 4
  for (size_t width = 1; width < kRows; width *= 2) {
    const Pack<Bits> next[kRows] = {interleaved<i % 2 != 0, Bits>(rows[i / 2], rows[i / 2 + kRows / 2], lanes)...};
    ((rows[i] = next[i]), ...);
  }
  (store_pack(rows[i], out + static_cast<int64_t>(i) * out_step, Store::cached), ...);
}

/// A tile of a cache line by as many rows. It is gathered before it is written, in whole cache lines: where the steps
/// are powers of two, a cache cannot hold all lines of a tile.
template <class Bits>
void transpose_tile(const Bits* in, int64_t in_step, Bits* out, int64_t out_step, Store store) {
  constexpr int64_t kSide = kLine / static_cast<int64_t>(sizeof(Bits)), kRows = kPackWidth<Bits>;
  alignas(kLine) Bits tile[kSide][kSide];
  for (int64_t c = 0; c < kSide; c += kRows) {
    for (int64_t r = 0; r < kSide; r += kRows)
      transpose_block(in + r * in_step + c, in_step, &tile[c][r], kSide, std::make_index_sequence<size_t(kRows)>());
  }
  for (int64_t c = 0; c < kSide; ++c) {
    for (int64_t r = 0; r < kSide; r += kRows) store_pack(load(&tile[c][r]), out + c * out_step + r, store);
  }
}

/// What does not fill a tile.
template <class Bits>
void transpose_rest(const Bits* in, int64_t in_step, Bits* out, int64_t out_step, int64_t rows, int64_t columns) {
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) out[c * out_step + r] = in[r * in_step + c];
}

}  // namespace

template <class Bits>
void transpose_bits(const Bits* in, int64_t in_step, Bits* out, int64_t out_step, int64_t rows, int64_t columns,
                    Store store) {
  constexpr int64_t kSide = kLine / static_cast<int64_t>(sizeof(Bits));
  // Tiles of a group share the pages that they read and those that they write.
  constexpr int64_t kGroup = std::max<int64_t>(kSide, 64);
  if (reinterpret_cast<uintptr_t>(out) % kLine != 0 || out_step % kSide != 0) store = Store::cached;
  for (int64_t row = 0; row < rows; row += kGroup) {
    for (int64_t column = 0; column < columns; column += kGroup) {
      for (int64_t c = column; c < std::min(column + kGroup, columns); c += kSide) {
        for (int64_t r = row; r < std::min(row + kGroup, rows); r += kSide) {
          const Bits* const from = in + r * in_step + c;
          Bits* const to = out + c * out_step + r;
          const int64_t height = std::min(kSide, rows - r), width = std::min(kSide, columns - c);
          if (height == kSide && width == kSide) transpose_tile(from, in_step, to, out_step, store);
          else transpose_rest(from, in_step, to, out_step, height, width);
        }
      }
    }
  }
#ifdef __SSE2__
  if (store == Store::streamed) _mm_sfence();  // before other threads are told that the result is there
#endif
}

template void transpose_bits(const uint8_t*, int64_t, uint8_t*, int64_t, int64_t, int64_t, Store);
template void transpose_bits(const uint16_t*, int64_t, uint16_t*, int64_t, int64_t, int64_t, Store);
template void transpose_bits(const uint32_t*, int64_t, uint32_t*, int64_t, int64_t, int64_t, Store);
template void transpose_bits(const uint64_t*, int64_t, uint64_t*, int64_t, int64_t, int64_t, Store);

}  // namespace shard::cpu::detail
