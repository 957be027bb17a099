// Tensors of matrices, for kernels that call LAPACK for each of them: their sizes, loops over them on all threads, and
// errors that name one of them.
#pragma once

#include <algorithm>
#include <atomic>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/parallel.h"

namespace shard::cpu {

/// A tensor of matrices.
struct Matrices {
  int64_t count, rows, columns;

  explicit Matrices(const DenseTensor& x)
      : count(x.dims().numel(0, x.dims().rank() - 2)), rows(x.dims()[x.dims().rank() - 2]),
        columns(x.dims()[x.dims().rank() - 1]) {}
  int64_t size() const { return rows * columns; }
  int64_t cost() const { return size() * std::max(rows, columns); }
};

/// LAPACK counts in int.
inline int count_of(const OpContext& ctx, int64_t size) {
  if (size > 30000) {
    fail(ErrorCode::out_of_range, "[{}] a matrix has a dim of {}, but the largest supported one is 30000", ctx.op,
         size);
  }
  return static_cast<int>(size);
}

/// Calls body(i), which returns whether it succeeds, for each matrix, and returns the first for
/// which it does not, else -1. A loop that throws would stop the others halfway.
template <class Body>
int64_t first_failure(int64_t count, int64_t cost, const Body& body) {
  std::atomic<int64_t> first = count;
  parallel_for(count, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (body(i)) continue;
      for (int64_t known = first; i < known && !first.compare_exchange_weak(known, i);) {}
    }
  });
  return first < count ? first.load() : -1;
}

/// Throws unless `failure`, from first_failure, is -1. `problem` is what is wrong with the matrix of
/// x, input 0.
inline void check_matrices(const OpContext& ctx, const DenseTensor& x, int64_t failure, const char* problem) {
  if (failure < 0) return;
  const Box box = ctx.input_box(0, x);
  const Dims& dims = x.dims();
  Dims at;
  for (int d = dims.rank() - 3; d >= 0; failure /= dims[d--]) at.insert(0, box.begin[d] + failure % dims[d]);
  fail_check(ErrorCode::invalid_argument, "[{}] {} (x is {}{})", ctx.op, problem, global_text(ctx, 0, x),
             at.rank() > 0 ? ", the matrix is at " + to_string(at) : "");
}

/// The dims before the last `matrix_dims` ones.
inline Dims leading(const Dims& dims, int matrix_dims) {
  Dims result;
  for (int d = 0; d + matrix_dims < dims.rank(); ++d) result.push_back(dims[d]);
  return result;
}

}  // namespace shard::cpu
