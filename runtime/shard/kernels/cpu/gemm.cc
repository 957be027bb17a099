// Chooses what multiplies two matrices, and divides large products among threads.
#include "shard/kernels/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>

#include "shard/kernels/cpu/gemm_table.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {
namespace {

constexpr int64_t kJob = 1 << 22;  // multiplications that justify a thread
// The same of bfloat16 by tiles, which take a quarter of the time; and from when on our own code for them is faster than oneDNN's
// (bench/gemm.sh --products).
constexpr int64_t kTileJob = 1 << 24, kOwnTiles = 1 << 28;
constexpr int64_t kPart = 256;  // rows or columns of a job; fixed, so that results do not depend on threads

/// The row of this processor in the table.
const GemmTableRow& table_row() {
  const unsigned isa = onednn_isa();
  const GemmTableRow* found = &kGemmTable[0];
  for (const GemmTableRow& row : kGemmTable)
    if ((isa & row.isa) == row.isa) found = &row;
  return *found;
}

bool onednn_is_faster(const Product& p) {
  static const GemmTableRow& row = table_row();
  const int from = p.transpose_y ? row.transposed_y : p.transpose_x ? row.transposed_x : row.plain;
  return p.work() >= int64_t{1} << from;
}

/// Rows or columns [begin, end) by OpenBLAS.
template <class C>
void multiply_by_openblas(const Product& p, const C* x, const C* y, C* out, bool columns, int64_t begin, int64_t end) {
  const Steps sx = steps_of_x(p), sy = steps_of_y(p);
  const C* const x_part = columns ? x : x + begin * sx.row;
  const C* const y_part = columns ? y + begin * sy.column : y;
  C* const out_part = out + (columns ? begin : begin * p.n);
  const auto tx = p.transpose_x ? CblasTrans : CblasNoTrans, ty = p.transpose_y ? CblasTrans : CblasNoTrans;
  const int m = static_cast<int>(columns ? p.m : end - begin), n = static_cast<int>(columns ? end - begin : p.n);
  const int k = static_cast<int>(p.k), ldx = static_cast<int>(p.transpose_x ? p.m : p.k),
            ldy = static_cast<int>(p.transpose_y ? p.k : p.n), ldo = static_cast<int>(p.n);
  if constexpr (std::is_same_v<C, float>) {
    cblas_sgemm(CblasRowMajor, tx, ty, m, n, k, 1.0f, x_part, ldx, y_part, ldy, 0.0f, out_part, ldo);
  } else {
    cblas_dgemm(CblasRowMajor, tx, ty, m, n, k, 1.0, x_part, ldx, y_part, ldy, 0.0, out_part, ldo);
  }
}

/// The product of doubles, divided by rows or columns.
void multiply_doubles(const Product& p, const double* x, const double* y, double* out) {
  const bool columns = p.n > p.m;
  const int64_t length = columns ? p.n : p.m;
  const int64_t parts = p.work() > kJob ? (length + kPart - 1) / kPart : 1, part = parts > 1 ? kPart : length;
  parallel_for(parts, std::max<int64_t>(1, p.work() / parts / (kJob / kGrain)), [&](int64_t first, int64_t last) {
    for (int64_t job = first; job < last; ++job)
      multiply_by_openblas(p, x, y, out, columns, job * part, std::min((job + 1) * part, length));
  });
}

bool takes_onednn_whole(const Product& p, DType dtype) {
  return dtype != DType::float64 && (dtype == DType::bfloat16 || onednn_is_faster(p));
}

/// A product that is one job, without its epilogue.
void multiply_whole(const Product& p, const Factors& factors, const Result& out) {
  if (p.m == 1 || p.n == 1) return multiply_vector(p, factors, out);
  if (factors.dtype == DType::float64) {
    return multiply_doubles(p, static_cast<const double*>(factors.x), static_cast<const double*>(factors.y),
                            static_cast<double*>(out.data));
  }
  if (takes_onednn_whole(p, factors.dtype)) return multiply_by_onednn(p, factors, out);
  multiply_by_openblas(p, static_cast<const float*>(factors.x), static_cast<const float*>(factors.y),
                       static_cast<float*>(out.data), false, 0, p.m);
}

}  // namespace

int64_t products_of_call(const Product& p, DType dtype) {
  if (p.m == 1 || p.n == 1 || p.work() > kJob || dtype == DType::float16 || !takes_onednn_whole(p, dtype)) return 1;
  if (dtype == DType::bfloat16 && !onednn_multiplies_bfloat16()) return 1;
  return kJob / p.work();
}

GemmGrid grid_of(const Product& p, int64_t tile_rows, int64_t tile_columns) {
  const int64_t most_rows = (p.m + tile_rows - 1) / tile_rows, most_columns = (p.n + tile_columns - 1) / tile_columns,
                jobs = std::clamp<int64_t>(p.work() / kJob, 1, threads() == 1 ? 1 : 4 * threads());
  GemmGrid best{1, 1};
  int64_t least = INT64_MAX;  // rows of x and columns of y that are copied
  for (int64_t columns = 1; columns <= std::min(jobs, most_columns); ++columns) {
    const int64_t rows = std::min((jobs + columns - 1) / columns, most_rows);
    const int64_t copies = columns * p.m + rows * p.n;
    if (copies < least) least = copies, best = {rows, columns};
  }
  return best;
}

void multiply(const Product& p, const Factors& factors, const Result& out) {
  const DType dtype = factors.dtype;
  if (p.m != 1 && p.n != 1 && dtype != DType::float64) {
    const bool has_tiles = dtype == DType::bfloat16 && processor_has_tiles();
    const bool is_large = p.work() > (has_tiles ? kTileJob : kJob);
    if (dtype == DType::float16 || (dtype == DType::bfloat16 && !onednn_multiplies_bfloat16()) ||
        (dtype == DType::float32 && is_large))
      return multiply_packed(p, factors, out);
    if (is_large) {
      return has_tiles && p.work() > kOwnTiles ? multiply_tiled(p, factors, out)
                                               : multiply_blocks_by_onednn(p, factors, out);
    }
  }
  multiply_whole(p, factors, out);
  finish(out, 0, p.m * p.n);
}

}  // namespace shard::cpu
