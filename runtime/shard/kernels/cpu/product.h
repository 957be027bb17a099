// Products of small matrices that are in the caches, in registers as far as possible. Large matrices are for libraries
// (gemm.cc).
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_PRODUCT_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_PRODUCT_H
#undef SHARD_KERNELS_CPU_PRODUCT_H
#else
#define SHARD_KERNELS_CPU_PRODUCT_H
#endif

#include "hwy/highway.h"

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// A matrix whose element (i, k) is data[i * row_step + k * column_step].
template <class C>
struct Strided {
  const C* data;
  int64_t row_step;
  int64_t column_step;
};

/// Columns of the result are a multiple of this: the buffers of b and of the result are padded to it.
inline constexpr int64_t kProductColumns = 16;

namespace detail {

template <int rows, int vectors, class C>
HWY_INLINE void product_tile(int64_t depth, const Strided<C>& a, const C* b, int64_t b_step, C* out, int64_t out_step) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<C> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto width = static_cast<int64_t>(hn::Lanes(tag));
  V sums[rows][vectors];
#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) sums[i][v] = hn::LoadU(tag, out + i * out_step + v * width);
  }
  for (int64_t k = 0; k < depth; ++k) {
    V line[vectors];
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) line[v] = hn::LoadU(tag, b + k * b_step + v * width);
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i) {
      const V factor = hn::Set(tag, a.data[i * a.row_step + k * a.column_step]);
#pragma GCC unroll 12
      for (int v = 0; v < vectors; ++v) sums[i][v] = hn::MulAdd(factor, line[v], sums[i][v]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) hn::StoreU(sums[i][v], tag, out + i * out_step + v * width);
  }
}

}  // namespace detail

/// out += a * b for a [rows, depth], b [depth, columns] and out [rows, columns]; the rows of b and out are b_step and
/// out_step apart. Each element is summed in the order of k, whatever the sizes are.
template <class C>
void add_product(int64_t rows, int64_t columns, int64_t depth, const Strided<C>& a, const C* b, int64_t b_step, C* out,
                 int64_t out_step) {
  const auto width = static_cast<int64_t>(hwy::HWY_NAMESPACE::Lanes(hwy::HWY_NAMESPACE::ScalableTag<C>()));
  // As many rows as leave registers for the rest; more vectors of b would not fit into the first-level cache with them.
  constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 12 : 4, kVectors = 2;
  const auto strip = [&]<int vectors>(std::integral_constant<int, vectors>, int64_t column) {
    int64_t i = 0;
    const auto tiles = [&]<int count>(std::integral_constant<int, count>) {
      for (; i + count <= rows; i += count) {
        detail::product_tile<count, vectors>(depth, Strided<C>{a.data + i * a.row_step, a.row_step, a.column_step},
                                             b + column, b_step, out + i * out_step + column, out_step);
      }
    };
    tiles(std::integral_constant<int, kRows>());
    if constexpr (kRows > 8) tiles(std::integral_constant<int, 8>());
    tiles(std::integral_constant < int, (kRows > 8) ? 4 : kRows / 2 > ());
    tiles(std::integral_constant<int, 1>());
  };
  int64_t column = 0;
  for (; column + kVectors * width <= columns; column += kVectors * width)
    strip(std::integral_constant<int, kVectors>(), column);
  for (; column < columns; column += width) strip(std::integral_constant<int, 1>(), column);
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
