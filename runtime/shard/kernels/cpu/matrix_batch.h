// Tensors of matrices, for the kernels of all backends: their sizes and leading dims.
#pragma once

#include <algorithm>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"

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

/// The dims before the last `matrix_dims` ones.
inline Dims leading(const Dims& dims, int matrix_dims) {
  Dims result;
  for (int d = 0; d + matrix_dims < dims.rank(); ++d) result.push_back(dims[d]);
  return result;
}

/// The numbers of the matrices in a tensor of leading dims `from` that broadcast to those of `to`.
inline std::vector<int64_t> broadcast_numbers(const Dims& from, const Dims& to) {
  std::vector<int64_t> numbers(static_cast<size_t>(to.numel()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    auto rest = static_cast<int64_t>(i);
    int64_t stride = 1;
    for (int d = to.rank() - 1, f = from.rank() - 1; f >= 0; rest /= to[d--], stride *= from[f--])
      numbers[i] += from[f] == 1 ? 0 : rest % to[d] * stride;
  }
  return numbers;
}

}  // namespace shard::cpu
