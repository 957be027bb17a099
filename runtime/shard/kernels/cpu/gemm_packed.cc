// Products of matrices of floats by our own code: strips of x and panels of y are copied into buffers that fit into the
// caches, converted to the type of sums where they are narrower, and multiplied in tiles that fit into the registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/gemm_packed.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/gemm.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/scratch.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

constexpr int kVectors = 2;                             // of a row of a tile
constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 14 : 6;  // of a tile: with them, its sums fill the registers
constexpr int64_t kDepth = 512;                         // terms of a sum that are added in registers
constexpr int64_t kRowStep = kDepth + 16;               // of a strip; not a power of two, which caches dislike
constexpr int64_t kStrips = 8;                          // of x that are copied at once
constexpr int64_t kStripSize = std::max<int64_t>(kRows * kRowStep, 16 * kDepth);
constexpr int64_t kWidth = 512;  // columns of y that are copied at once

inline int64_t panel_width() { return kVectors * static_cast<int64_t>(hn::Lanes(Tag())); }

/// A tile: out (+)= the sum over k of x[i][k] * y[k], for y of [depth, panel_width()].
template <int rows, bool transposed>
HWY_NOINLINE void multiply_tile(int64_t depth, const float* HWY_RESTRICT x, const float* HWY_RESTRICT y,
                                float* HWY_RESTRICT out, int64_t out_step, bool add) {
  const Tag tag;
  const auto width = static_cast<int64_t>(hn::Lanes(tag));
  Vector sums[rows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    __builtin_prefetch(out + i * out_step, 1);
    __builtin_prefetch(out + i * out_step + kVectors * width - 1, 1);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(tag);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vector line[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      line[v] = hn::LoadU(tag, y + v * width);
      __builtin_prefetch(y + (8 * kVectors + v) * width);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vector factor = hn::Set(tag, transposed ? x[i] : x[i * kRowStep]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(factor, line[v], sums[i][v]);
    }
    x += transposed ? 16 : 1;
    y += kVectors * width;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* const to = out + i * out_step + v * width;
      hn::StoreU(add ? hn::Add(sums[i][v], hn::LoadU(tag, to)) : sums[i][v], tag, to);
    }
  }
}

using Tile = void (*)(int64_t, const float*, const float*, float*, int64_t, bool);
template <bool transposed, int... i>
constexpr std::array<Tile, sizeof...(i)> tiles_of(std::integer_sequence<int, i...>) {
  return {&multiply_tile<i + 1, transposed>...};
}
/// Tiles of 1, 2, ... rows.
template <bool transposed>
constexpr auto kTiles = tiles_of<transposed>(std::make_integer_sequence<int, kRows>());

template <class T>
HWY_INLINE void copy_line(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
/// Four rows of 4 numbers in each block of 128 bits, exchanged: to[i] is column i.
HWY_INLINE void transpose_blocks(const Vector from[4], float* to, int64_t step) {
  const Tag tag;
  const hn::RepartitionToWide<Tag> wide;
  const auto pair = [&](Vector a, Vector b, bool upper) {
    return hn::BitCast(wide, upper ? hn::InterleaveUpper(tag, a, b) : hn::InterleaveLower(tag, a, b));
  };
  const auto a = pair(from[0], from[1], false), b = pair(from[2], from[3], false), c = pair(from[0], from[1], true),
             d = pair(from[2], from[3], true);
  hn::StoreU(hn::BitCast(tag, hn::InterleaveLower(wide, a, b)), tag, to);
  hn::StoreU(hn::BitCast(tag, hn::InterleaveUpper(wide, a, b)), tag, to + step);
  hn::StoreU(hn::BitCast(tag, hn::InterleaveLower(wide, c, d)), tag, to + 2 * step);
  hn::StoreU(hn::BitCast(tag, hn::InterleaveUpper(wide, c, d)), tag, to + 3 * step);
}

/// 4 numbers of each of the rows 0, 4, 8, ... in the blocks of a vector.
HWY_INLINE Vector load_blocks(const float* from, int64_t step) {
  const hn::FixedTag<float, 4> block;
#if HWY_TARGET == HWY_AVX3
  const hn::FixedTag<float, 8> half;
  const auto two = [&](int64_t i) {
    return hn::Combine(half, hn::LoadU(block, from + 4 * (i + 1) * step), hn::LoadU(block, from + 4 * i * step));
  };
  return hn::Combine(Tag(), two(2), two(0));
#else
  return hn::Combine(Tag(), hn::LoadU(block, from + 4 * step), hn::LoadU(block, from));
#endif
}
#endif

/// to[k * to_step + j] = from[j * from_step + k] for `lines` j and `depth` k.
template <class T>
void transpose_lines(const T* from, int64_t from_step, int64_t lines, int64_t depth, float* to, int64_t to_step) {
  int64_t j = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, float>) {
    const auto width = static_cast<int64_t>(hn::Lanes(Tag()));
    for (; j + width <= lines; j += width) {
      int64_t k = 0;
      for (; k + 4 <= depth; k += 4) {
        Vector rows[4];
        for (int64_t r = 0; r < 4; ++r) rows[r] = load_blocks(from + (j + r) * from_step + k, from_step);
        transpose_blocks(rows, to + k * to_step + j, to_step);
      }
      for (; k < depth; ++k)
        for (int64_t r = j; r < j + width; ++r) to[k * to_step + r] = from[r * from_step + k];
    }
  }
#endif
  for (; j < lines; ++j)
    for (int64_t k = 0; k < depth; ++k) to[k * to_step + j] = static_cast<float>(from[j * from_step + k]);
}

/// Copies a part of y [depth, columns] into panels, whose missing columns are zeros.
template <class T>
void pack_panels(const T* y, const Steps& steps, int64_t depth, int64_t columns, float* to) {
  constexpr int64_t kLines = 16;  // of y at once, whose pages have room in the TLB
  const int64_t width = panel_width();
  if (columns % width != 0) std::fill_n(to + columns / width * width * depth, depth * width, 0.0f);
  for (int64_t k = 0; steps.column == 1 && k < depth; k += kLines) {
    for (int64_t j = 0; j < columns; j += width) {
      float* const panel = to + j * depth;
      for (int64_t line = k; line < std::min(k + kLines, depth); ++line)
        copy_line(y + line * steps.row + j, std::min(width, columns - j), panel + line * width);
    }
  }
  for (int64_t j = 0; steps.column != 1 && j < columns; j += width)
    transpose_lines(y + j * steps.column, steps.column, std::min(width, columns - j), depth, to + j * depth, width);
}

/// Where strip i of `strips` of `rows` rows begins.
inline int64_t strip_begin(int64_t rows, int64_t strips, int64_t i) { return rows * i / strips; }

/// A part of a product: rows and columns of the result, which goes to `sums`.
template <class T>
struct Part {
  const T *x, *y;
  Steps steps_x, steps_y;
  int64_t rows, columns, depth;
  float* sums;
  int64_t sums_step;
  const Result* finished = nullptr;  // is told of rows that are complete
  int64_t row = 0;                   // the first row, in the whole result
};

/// Copies strips [first, last) of x, of `depth` columns.
template <class T>
void pack_strips(const Part<T>& part, int64_t strips, int64_t first, int64_t last, const T* x, int64_t depth,
                 float* to) {
  for (int64_t s = first; s < last; ++s, to += kStripSize) {
    const int64_t begin = strip_begin(part.rows, strips, s), end = strip_begin(part.rows, strips, s + 1);
    if (part.steps_x.column == 1) {
      for (int64_t i = begin; i < end; ++i) copy_line(x + i * part.steps_x.row, depth, to + (i - begin) * kRowStep);
    } else {
      for (int64_t k = 0; k < depth; ++k) copy_line(x + k * part.steps_x.column + begin, end - begin, to + k * 16);
    }
  }
}

/// Multiplies a strip by all panels.
HWY_INLINE void multiply_strip(bool transposed, int64_t rows, int64_t columns, int64_t depth, const float* strip,
                               const float* panels, float* out, int64_t out_step, bool add) {
  const int64_t width = panel_width();
  const Tile tile = (transposed ? kTiles<true> : kTiles<false>)[static_cast<size_t>(rows - 1)];
  int64_t j = 0;
  for (; j + width <= columns; j += width) tile(depth, strip, panels + j * depth, out + j, out_step, add);
  if (j == columns) return;
  HWY_ALIGN float edge[kRows * 64];
  tile(depth, strip, panels + j * depth, edge, width, false);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = j; c < columns; ++c) {
      float& to = out[i * out_step + c];
      to = add ? edge[i * width + c - j] + to : edge[i * width + c - j];
    }
  }
}

template <class T>
void multiply_part(const Part<T>& part) {
  const bool transposed = part.steps_x.column != 1;
  const int64_t strips = (part.rows + kRows - 1) / kRows, blocks = (part.depth + kDepth - 1) / kDepth;
  const int64_t panels = std::min(kWidth, (part.columns + panel_width() - 1) / panel_width() * panel_width()),
                depth = std::min(kDepth, part.depth);
  // Taken, and not one per thread: an epilogue may wait for other threads, and this thread then begin another product.
  const Scratch<float> memory(panels * depth + std::min(strips, kStrips) * kStripSize);
  float* const panel = memory.get();
  float* const strip = panel + panels * depth;
  for (int64_t column = 0; column < part.columns; column += kWidth) {
    const int64_t columns = std::min(kWidth, part.columns - column);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = part.depth * b / blocks, count = part.depth * (b + 1) / blocks - begin;
      pack_panels(part.y + begin * part.steps_y.row + column * part.steps_y.column, part.steps_y, count, columns,
                  panel);
      for (int64_t first = 0; first < strips; first += kStrips) {
        const int64_t last = std::min(first + kStrips, strips);
        pack_strips(part, strips, first, last, part.x + begin * part.steps_x.column, count, strip);
        for (int64_t s = first; s < last; ++s) {
          const int64_t row = strip_begin(part.rows, strips, s);
          multiply_strip(transposed, strip_begin(part.rows, strips, s + 1) - row, columns, count,
                         strip + (s - first) * kStripSize, panel, part.sums + row * part.sums_step + column,
                         part.sums_step, b > 0);
        }
        if (part.finished != nullptr && b + 1 == blocks && column + columns == part.columns)
          finish(*part.finished, (part.row + strip_begin(part.rows, strips, first)) * part.columns,
                 (part.row + strip_begin(part.rows, strips, last)) * part.columns);
      }
    }
  }
}

/// Part [begin, end) i of `parts` of `size`, in whole steps.
struct Range {
  int64_t begin, end;
  Range(int64_t size, int64_t parts, int64_t step, int64_t i)
      : begin(at(size, parts, step, i)), end(at(size, parts, step, i + 1)) {}
  static int64_t at(int64_t size, int64_t parts, int64_t step, int64_t i) {
    return std::min(size, (size + step - 1) / step * i / parts * step);
  }
};

template <class T, class R>
void multiply_job(const Product& p, const T* x, const T* y, const Range& rows, const Range& columns,
                  const Result& result) {
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  Part<T> part{x + rows.begin * sx.row,
               y + columns.begin * sy.column,
               sx,
               sy,
               rows.end - rows.begin,
               columns.end - columns.begin,
               p.k,
               nullptr,
               0};
  R* const to = static_cast<R*>(result.data) + rows.begin * p.n + columns.begin;
  const bool whole_rows = part.columns == p.n;
  if constexpr (std::is_same_v<R, float>) {
    part.sums = to, part.sums_step = p.n, part.row = rows.begin;
    part.finished = whole_rows ? &result : nullptr;
    multiply_part(part);
  } else {
    const DenseTensor sums = DenseTensor::allocate(kCpu, {Dims{part.rows, part.columns}, DType::float32});
    part.sums = sums.data<float>(), part.sums_step = part.columns;
    multiply_part(part);
    for (int64_t i = 0; i < part.rows; ++i)
      convert_elements(DType::float32, part.sums + i * part.columns, dtype_of<R>, to + i * p.n, part.columns);
    if (whole_rows) finish(result, rows.begin * p.n, rows.end * p.n);
  }
}

template <class T, class R>
void multiply_typed(const Product& p, const T* x, const T* y, const Result& result) {
  const GemmGrid grid = grid_of(p, kRows, panel_width());
  parallel_for(grid.rows * grid.columns, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job) {
      multiply_job<T, R>(p, x, y, Range(p.m, grid.rows, kRows, job % grid.rows),
                         Range(p.n, grid.columns, panel_width(), job / grid.rows), result);
    }
  });
  if (grid.columns > 1) finish(result, 0, p.m * p.n);  // rows are complete when all jobs are
}

void multiply_packed_for_target(const Product& p, const Factors& factors, const Result& out) {
  visit_dtype(factors.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (is_half<T> || std::is_same_v<T, float>) {
      const T *x = static_cast<const T*>(factors.x), *y = static_cast<const T*>(factors.y);
      if (out.dtype == DType::float32) multiply_typed<T, float>(p, x, y, out);
      else multiply_typed<T, T>(p, x, y, out);
    }
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(multiply_packed_for_target);
void multiply_packed(const Product& p, const Factors& factors, const Result& out) {
  HWY_DYNAMIC_DISPATCH(multiply_packed_for_target)(p, factors, out);
}
}  // namespace shard::cpu
#endif
