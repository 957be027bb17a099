// Decompositions into orthogonal and other factors on CUDA, by cuSOLVER: qr, eigh, svd.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/decompose.cuh"

namespace shard::cuda {
namespace {

using cpu::count_of;
using cpu::Matrices;

/// With the mode "r", q has no columns.
template <class T>
void qr(const OpContext& ctx, const DenseTensor& x, const std::string&, DenseTensor& q, DenseTensor& r) {
  const Matrices matrices(x), left(q), right(r);
  const int64_t m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  const DeviceScope scope(r.device().index);
  const int64_t step = m * std::max(n, left.columns);
  const DeviceArray<T> columns(matrices.count * step), factors(matrices.count * k);
  const DeviceArray<int> infos(matrices.count);
  transpose_matrices<T>(ctx, columns.get(), step, {elements<const T>(x), m, n, m * n}, matrices.count);
  if (k > 0) Solver<T>::geqrf(m, n, columns.get(), step, factors.get(), matrices.count, infos.get());
  for_each(ctx, r.numel(), TakeTriangle<T>{elements<T>(r), columns.get(), m, n, step, right.rows});
  if (q.numel() == 0) return;
  if (k == 0) return for_each(ctx, q.numel(), FillIdentity<T>{elements<T>(q), left.columns, left.size()});
  Solver<T>::orgqr(m, left.columns, k, columns.get(), step, factors.get(), matrices.count, infos.get());
  transpose_matrices<T>(ctx, elements<T>(q), left.size(), {columns.get(), left.columns, m, step}, matrices.count);
}

template <class T>
void eigh(const OpContext& ctx, const DenseTensor& x, const std::string& uplo, DenseTensor& w, DenseTensor& v) {
  const Matrices m(x);
  const int64_t n = count_of(ctx, m.rows);
  if (v.numel() == 0) return;
  const DeviceScope scope(v.device().index);
  const MatrixCheck check(ctx, x,
                          "the eigenvalues of a matrix of x do not converge, or it has elements that are not finite");
  const DeviceArray<T> vectors(x.numel());
  const DeviceArray<int> infos(m.count);
  for_each(ctx, x.numel(), CopyFinite<T>{vectors.get(), elements<const T>(x), m.size()}, check);
  Solver<T>::syevd(uplo == "L", n, vectors.get(), elements<T>(w), m.count, infos.get());
  for_each(ctx, m.count, ReportFailures{infos.get()}, check);
  transpose_matrices<T>(ctx, elements<T>(v), vectors.get(), n, n, m.count);
}

template <class T>
void svd(const OpContext& ctx, const DenseTensor& x, bool full_matrices, DenseTensor& u, DenseTensor& s,
         DenseTensor& vh) {
  const Matrices matrices(x), left(u), right(vh);
  const int64_t m = count_of(ctx, matrices.rows), n = count_of(ctx, matrices.columns), k = std::min(m, n);
  if (k > 20000) {  // as on the CPU
    fail(ErrorCode::out_of_range, "[{}] a matrix of x is [{}, {}], but the smaller dim must be at most 20000", ctx.op,
         m, n);
  }
  const DeviceScope scope(s.device().index);
  if (k == 0) {  // only the identity is orthogonal to nothing
    for_each(ctx, u.numel(), FillIdentity<T>{elements<T>(u), left.columns, left.size()});
    return for_each(ctx, vh.numel(), FillIdentity<T>{elements<T>(vh), right.columns, right.size()});
  }
  if (x.numel() == 0) return;
  const MatrixCheck check(ctx, x, kNoSingularValues);
  const DeviceArray<T> copy(x.numel());
  const DeviceArray<int> infos(matrices.count);
  for_each(ctx, x.numel(), CopyFinite<T>{copy.get(), elements<const T>(x), matrices.size()}, check);
  decompose<T>(ctx, copy.get(), {matrices.count, m, n}, full_matrices,
               {elements<T>(u), elements<T>(s), elements<T>(vh), infos.get()});
  for_each(ctx, matrices.count, ReportFailures{infos.get()}, check);
}

}  // namespace

void register_linalg_factor(int backend) {
  for_types(Types<float, double>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("qr", backend, dtype_of<T>, qr<T>);
    register_kernel("eigh", backend, dtype_of<T>, eigh<T>);
    register_kernel("svd", backend, dtype_of<T>, svd<T>);
  });
}

}  // namespace shard::cuda
