// Products of matrices of bfloat16 by the processor's tiles (AMX): both factors are copied into tiles, and then blocks
// of the result are added up tile by tile.
#include "shard/kernels/cpu/gemm.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define SHARD_HAS_AMX
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of undefined vectors in its own header
#endif
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cpuid.h>
#endif

#include <algorithm>
#include <optional>

#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/scratch.h"

namespace shard::cpu {

#ifdef SHARD_HAS_AMX
namespace {

#define SHARD_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

constexpr int64_t kSide = 16, kDepth = 32;         // rows or columns of a tile, and the terms of its sums
constexpr int64_t kTile = kSide * kDepth;          // its elements
constexpr int64_t kStrip = 2 * kSide;              // rows or columns that are multiplied at once: two tiles
constexpr int64_t kAhead = 4;                      // pairs of tiles of y that are fetched before they are multiplied
constexpr int64_t kPanelBytes = int64_t{1} << 20;  // of y that are multiplied by all strips in turn

/// A factor as strips of kStrip rows of x or columns of y: `lines` of them with `depth` terms each. `outer` apart are the
/// lines, `inner` apart the terms; one of them is 1.
struct Factor {
  const uint16_t* data;
  int64_t lines, depth, outer, inner;
  int64_t strips() const { return (lines + kStrip - 1) / kStrip; }
  int64_t blocks() const { return (depth + kDepth - 1) / kDepth; }
  int64_t size() const { return strips() * blocks() * 2 * kTile; }
};

SHARD_TILES inline __mmask32 mask_of(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint32_t{1} << std::max<int64_t>(count, 0)) - 1);
}

/// Exchanges rows and columns of 16 x 16 numbers of 32 bits.
SHARD_TILES inline void transpose(__m512i* rows) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
    a[i + 8] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(a[i], a[i + 8], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(a[i + 4], a[i + 12], 0xdd);
  }
}

/// Copies a tile of `lines` lines and `depth` terms, zeros beyond them. A tile of x has a line in each row; one of y, with
/// `paired`, has two terms of each line in a row.
SHARD_TILES void pack_tile(const Factor& factor, const uint16_t* from, int64_t lines, int64_t depth, bool paired,
                           uint16_t* to) {
  __m512i rows[kSide];
  const bool contiguous = factor.inner == 1;
  const __mmask32 line = mask_of(contiguous ? depth : std::min(lines, kSide));
  for (int64_t i = 0; i < kSide; ++i) {
    if (contiguous) {
      rows[i] = i < lines ? _mm512_maskz_loadu_epi16(line, from + i * factor.outer) : _mm512_setzero_si512();
      continue;
    }
    const auto term = [&](int64_t k) __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl"))) {
      return k < depth ? _mm512_cvtepu16_epi32(
                             _mm256_maskz_loadu_epi16(static_cast<__mmask16>(line), from + k * factor.inner))
                       : _mm512_setzero_si512();
    };
    rows[i] = _mm512_or_si512(term(2 * i), _mm512_slli_epi32(term(2 * i + 1), 16));
  }
  if (contiguous == paired) transpose(rows);
  for (int64_t i = 0; i < kSide; ++i) _mm512_storeu_si512(to + i * kDepth, rows[i]);
}

/// Copies strips [first, last) of a factor: for each of them, for each block of terms, two tiles.
void pack_strips(const Factor& factor, int64_t first, int64_t last, bool paired, uint16_t* to) {
  const int64_t blocks = factor.blocks(), strips = last - first;
  for (int64_t i = 0; i < strips * blocks; ++i) {  // along the contiguous dim, as far as the strips go
    const bool along_terms = factor.inner == 1;
    const int64_t s = first + (along_terms ? i / blocks : i % strips), b = along_terms ? i % blocks : i / strips;
    for (int64_t t = 0; t < 2; ++t) {
      const int64_t begin = s * kStrip + t * kSide;
      pack_tile(factor, factor.data + begin * factor.outer + b * kDepth * factor.inner, factor.lines - begin,
                factor.depth - b * kDepth, paired, to + ((s * blocks + b) * 2 + t) * kTile);
    }
  }
}

/// Rounds a row of sums.
template <class R>
SHARD_TILES void store_row(const float* sums, int64_t count, R* to) {
  for (int64_t j = 0; j < count; ++j) to[j] = R(sums[j]);
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// The product of a strip of x and one of y, [kStrip, kStrip].
SHARD_TILES void multiply_tiles(int64_t blocks, const uint16_t* x, const uint16_t* y, float* sums) {
  constexpr size_t kBytes = kStrip * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t b = 0; b < blocks; ++b, x += 2 * kTile, y += 2 * kTile) {
    for (int64_t line = 0; line < 2 * kTile; line += kDepth) __builtin_prefetch(y + kAhead * 2 * kTile + line);
    _tile_loadd(4, x, 64);
    _tile_loadd(6, y, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, y + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + kTile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kBytes);
  _tile_stored(1, sums + kSide, kBytes);
  _tile_stored(2, sums + kSide * kStrip, kBytes);
  _tile_stored(3, sums + kSide * kStrip + kSide, kBytes);
}

SHARD_TILES void begin_tiles() {
  static const TileConfig config;
  _tile_loadconfig(&config);
}
SHARD_TILES void end_tiles() { _tile_release(); }

/// Strips [begin, end) of x and y.
struct Strips {
  int64_t x_begin, x_end, y_begin, y_end;
};

/// Stores the part of [kStrip, kStrip] sums that is in the result.
void store_sums(const Product& p, const float* sums, int64_t row, int64_t column, const Result& out) {
  const int64_t columns = std::min(kStrip, p.n - column);
  for (int64_t i = row; i < std::min(row + kStrip, p.m); ++i, sums += kStrip) {
    const int64_t at = i * p.n + column;
    if (out.dtype == DType::float32) std::copy_n(sums, columns, static_cast<float*>(out.data) + at);
    else store_row(sums, columns, static_cast<bfloat16*>(out.data) + at);
  }
}

void multiply_strips(const Product& p, const uint16_t* x, const uint16_t* y, const Strips& strips, const Result& out) {
  const int64_t blocks = (p.k + kDepth - 1) / kDepth, strip = blocks * 2 * kTile,
                together = std::max<int64_t>(kPanelBytes / (strip * 2), 1);
  alignas(64) float sums[kStrip * kStrip];
  begin_tiles();
  for (int64_t first = strips.y_begin; first < strips.y_end; first += together) {
    for (int64_t i = strips.x_begin; i < strips.x_end; ++i) {
      for (int64_t j = first; j < std::min(first + together, strips.y_end); ++j) {
        multiply_tiles(blocks, x + i * strip, y + j * strip, sums);
        store_sums(p, sums, i * kStrip, j * kStrip, out);
      }
      const bool is_complete = strips.y_begin == 0 && strips.y_end * kStrip >= p.n && first + together >= strips.y_end;
      if (!is_complete) continue;
      end_tiles();  // an epilogue may wait for other threads, and this thread then begin another product
      finish(out, i * kStrip * p.n, std::min((i + 1) * kStrip, p.m) * p.n);
      begin_tiles();
    }
  }
  end_tiles();
}

}  // namespace

bool processor_has_tiles() {
  static const bool has = [] {
    constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kBytesAndWords = 1u << 30;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kBf16) == 0 || (d & kTiles) == 0 || (b & kBytesAndWords) == 0) return false;
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return has;
}

void multiply_tiled(const Product& p, const Factors& factors, const Result& out) {
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  const Factor x{static_cast<const uint16_t*>(factors.x), p.m, p.k, sx.row, sx.column},
      y{static_cast<const uint16_t*>(factors.y), p.n, p.k, sy.column, sy.row};
  const GemmGrid grid = grid_of(p, kStrip, kStrip);
  const int64_t jobs = grid.rows * grid.columns, bytes = (x.size() + y.size()) * 2;
  // While this thread waits for others it may begin another product, which takes scratch of its own.
  std::optional<Scratch<uint16_t>> scratch;
  DenseTensor packed;
  if (bytes <= kPanelBytes) scratch.emplace(bytes / 2);
  else packed = DenseTensor::allocate(kCpu, {Dims{bytes}, DType::uint8});
  uint16_t* const tiles = scratch ? scratch->get() : static_cast<uint16_t*>(packed.raw());
  uint16_t* const y_tiles = tiles + x.size();
  const int64_t strips = x.strips() + y.strips();
  parallel_for(strips, p.k * kStrip, [&](int64_t first, int64_t last) {
    if (first < x.strips()) pack_strips(x, first, std::min(last, x.strips()), false, tiles);
    if (last > x.strips()) pack_strips(y, std::max<int64_t>(first - x.strips(), 0), last - x.strips(), true, y_tiles);
  });
  parallel_for(jobs, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job) {
      const int64_t row = job % grid.rows, column = job / grid.rows;
      multiply_strips(p, tiles, y_tiles,
                      {x.strips() * row / grid.rows, x.strips() * (row + 1) / grid.rows,
                       y.strips() * column / grid.columns, y.strips() * (column + 1) / grid.columns},
                      out);
    }
  });
  if (grid.columns > 1) finish(out, 0, p.m * p.n);  // rows are complete when all jobs are
}

#else

bool processor_has_tiles() { return false; }
void multiply_tiled(const Product&, const Factors&, const Result&) {
  fail(ErrorCode::internal, "this processor has no tiles");
}

#endif

}  // namespace shard::cpu
