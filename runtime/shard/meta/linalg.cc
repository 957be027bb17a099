// infer_meta of decompositions of matrices and of ops that solve equations.
#include <algorithm>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

void check_matrices(const OpContext& ctx, const char* name, const Meta& x, bool square) {
  if (x.dtype != DType::float32 && x.dtype != DType::float64) {
    fail(ErrorCode::dtype_mismatch, "[{}] argument '{}' is {}, but must be float32 or float64; cast it", ctx.op, name,
         to_string(x));
  }
  const int rank = x.dims.rank();
  if (rank < 2 || (square && x.dims[rank - 1] != x.dims[rank - 2])) {
    fail(ErrorCode::shape_mismatch, "[{}] argument '{}' is {}, but its last two dims must be {}", ctx.op, name,
         to_string(x), square ? "those of square matrices" : "those of matrices");
  }
}

/// The dims before the last two.
Dims batch(const Dims& dims) {
  Dims leading;
  for (int d = 0; d + 2 < dims.rank(); ++d) leading.push_back(dims[d]);
  return leading;
}

Dims with(Dims leading, std::initializer_list<int64_t> last) {
  for (int64_t size : last) leading.push_back(size);
  return leading;
}

}  // namespace

void CholeskyInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  check_matrices(ctx, "x", x, /*square=*/true);
  out = x;
}

void InverseInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  check_matrices(ctx, "x", x, /*square=*/true);
  out = x;
}

void TriangularSolveInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  check_matrices(ctx, "x", x, /*square=*/true);
  check_matrices(ctx, "y", y, /*square=*/false);
  check_same_dtype(ctx, "x", x, "y", y);
  const int64_t n = x.dims[x.dims.rank() - 1], rows = y.dims[y.dims.rank() - 2];
  if (rows != n) {
    fail(ErrorCode::shape_mismatch,
         "[{}] argument 'y' is {} and 'x' is {}, but the matrices of y must have as many rows as those of x", ctx.op,
         to_string(y), to_string(x));
  }
  out = {with(broadcast(ctx, "x", batch(x.dims), "y", batch(y.dims)), {n, y.dims[y.dims.rank() - 1]}), x.dtype};
}

void SolveInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, Meta& out) {
  if (y.dims.rank() != 1) return TriangularSolveInferMeta(ctx, x, y, out);
  TriangularSolveInferMeta(ctx, x, {with(y.dims, {1}), y.dtype}, out);
  out.dims.erase(out.dims.rank() - 1);
}

void DetInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  check_matrices(ctx, "x", x, /*square=*/true);
  out = {batch(x.dims), x.dtype};
}

void SlogdetInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  DetInferMeta(ctx, x, out);
  out.dims.insert(0, 2);
}

void EighInferMeta(const OpContext& ctx, const Meta& x, const std::string& uplo, Meta& out_w, Meta& out_v) {
  check_matrices(ctx, "x", x, /*square=*/true);
  if (uplo != "L" && uplo != "U") {
    fail(ErrorCode::invalid_argument, "[{}] UPLO is '{}', but must be 'L' or 'U', the triangle of x that is read",
         ctx.op, uplo);
  }
  out_w = {with(batch(x.dims), {x.dims[x.dims.rank() - 1]}), x.dtype};
  out_v = x;
}

void SvdInferMeta(const OpContext& ctx, const Meta& x, bool full_matrices, Meta& u, Meta& s, Meta& vh) {
  check_matrices(ctx, "x", x, /*square=*/false);
  const Dims leading = batch(x.dims);
  const int64_t m = x.dims[x.dims.rank() - 2], n = x.dims[x.dims.rank() - 1], k = std::min(m, n);
  u = {with(leading, {m, full_matrices ? m : k}), x.dtype};
  s = {with(leading, {k}), x.dtype};
  vh = {with(leading, {full_matrices ? n : k, n}), x.dtype};
}

void QrInferMeta(const OpContext& ctx, const Meta& x, const std::string& mode, Meta& q, Meta& r) {
  check_matrices(ctx, "x", x, /*square=*/false);
  const bool complete = mode == "complete";
  if (!complete && mode != "reduced" && mode != "r") {
    fail(ErrorCode::invalid_argument, "[{}] mode is '{}', but must be 'reduced', 'complete', or 'r' for r alone",
         ctx.op, mode);
  }
  const Dims leading = batch(x.dims);
  const int64_t m = x.dims[x.dims.rank() - 2], n = x.dims[x.dims.rank() - 1], k = complete ? m : std::min(m, n);
  q = {with(leading, {m, mode == "r" ? 0 : k}), x.dtype};
  r = {with(leading, {k, n}), x.dtype};
}

void LUInferMeta(const OpContext& ctx, const Meta& x, Meta& out, Meta& pivots, Meta& infos) {
  check_matrices(ctx, "x", x, /*square=*/false);
  const Dims leading = batch(x.dims);
  out = x;
  pivots = {with(leading, {std::min(x.dims[x.dims.rank() - 2], x.dims[x.dims.rank() - 1])}), DType::int32};
  infos = {leading, DType::int32};
}

void LUUnpackInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, bool unpack_ludata, bool unpack_pivots,
                       Meta& pmat, Meta& l, Meta& u) {
  Meta out, pivots, infos;
  LUInferMeta(ctx, x, out, pivots, infos);
  if (y.dtype != pivots.dtype || y.dims != pivots.dims) {
    fail(y.dtype == pivots.dtype ? ErrorCode::shape_mismatch : ErrorCode::dtype_mismatch,
         "[{}] argument 'y' is {}, but the pivots of an x of {} are {}; pass what lu returned", ctx.op, to_string(y),
         to_string(x), to_string(pivots));
  }
  const Dims leading = batch(x.dims);
  const int64_t m = x.dims[x.dims.rank() - 2], n = x.dims[x.dims.rank() - 1], k = std::min(m, n);
  pmat = {with(leading, {m, unpack_pivots ? m : 0}), x.dtype};
  l = {with(leading, {m, unpack_ludata ? k : 0}), x.dtype};
  u = {with(leading, {unpack_ludata ? k : 0, n}), x.dtype};
}

void LstsqInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, const std::string& driver, Meta& solution,
                    Meta& residuals, Meta& rank, Meta& singular_values) {
  check_matrices(ctx, "x", x, /*square=*/false);
  check_matrices(ctx, "y", y, /*square=*/false);
  check_same_dtype(ctx, "x", x, "y", y);
  const bool decomposes = driver == "gelsd" || driver == "gelss";
  if (!decomposes && driver != "gels" && driver != "gelsy") {
    fail(ErrorCode::invalid_argument, "[{}] driver is '{}', but must be 'gels', 'gelsy', 'gelsd' or 'gelss'", ctx.op,
         driver);
  }
  const Dims leading = batch(x.dims);
  const int64_t m = x.dims[x.dims.rank() - 2], n = x.dims[x.dims.rank() - 1], columns = y.dims[y.dims.rank() - 1];
  if (y.dims != with(leading, {m, columns})) {
    fail(ErrorCode::shape_mismatch,
         "[{}] argument 'x' is {} and 'y' is {}, but both must have the same leading dims and as many rows; unsqueeze "
         "a vector y, and expand leading dims",
         ctx.op, to_string(x), to_string(y));
  }
  solution = {with(leading, {n, columns}), x.dtype};
  residuals = {with(leading, {m > n && driver != "gelsy" ? columns : 0}), x.dtype};
  rank = {leading, DType::int32};
  singular_values = {with(leading, {decomposes ? std::min(m, n) : 0}), x.dtype};
}

}  // namespace shard::meta
