// Products of matrices as the kernels of CUDA see them: their sizes, batches with broadcast leading dims, and the kernels for what
// cuBLASLt does not multiply.
#pragma once

#include <algorithm>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"

namespace shard::cuda {

/// The two multiplied dims, and one leading dim: out[b] = x[b * x_step] * y[b * y_step], row-major.
struct Product {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_x = false, transpose_y = false;
  int64_t batch = 1, x_step = 0, y_step = 0;

  auto operator<=>(const Product&) const = default;
};

/// One leading dim: its size, and how many matrices each operand advances (0: broadcast).
struct Leading {
  int64_t size, x, y;
};

/// The leading dims without those of size 1; neighbours are merged where both operands traverse
/// them uniformly.
inline std::vector<Leading> leading_dims(const Dims& x, const Dims& y) {
  const int x_rank = std::max(x.rank() - 2, 0);
  const int y_rank = std::max(y.rank() - 2, 0);
  std::vector<Leading> joined;  // innermost first
  int64_t x_step = 1, y_step = 1;
  for (int back = 1; back <= std::max(x_rank, y_rank); ++back) {
    const int64_t x_size = back <= x_rank ? x[x_rank - back] : 1;
    const int64_t y_size = back <= y_rank ? y[y_rank - back] : 1;
    const Leading dim{std::max(x_size, y_size), x_size == 1 ? 0 : x_step, y_size == 1 ? 0 : y_step};
    x_step *= x_size;
    y_step *= y_size;
    if (dim.size == 1) continue;
    if (!joined.empty() && dim.x == joined.back().x * joined.back().size &&
        dim.y == joined.back().y * joined.back().size) {
      joined.back().size *= dim.size;
    } else {
      joined.push_back(dim);
    }
  }
  return joined;
}

inline Product product_of(const Dims& x, const Dims& y, bool transpose_x, bool transpose_y) {
  Product p;
  p.transpose_x = transpose_x && x.rank() > 1;
  p.transpose_y = transpose_y && y.rank() > 1;
  const auto size = [](const Dims& dims, int from_end) { return dims[dims.rank() - from_end]; };
  p.k = x.rank() == 1 ? x[0] : size(x, p.transpose_x ? 2 : 1);
  p.m = x.rank() == 1 ? 1 : size(x, p.transpose_x ? 1 : 2);
  p.n = y.rank() == 1 ? 1 : size(y, p.transpose_y ? 2 : 1);
  return p;
}

/// Moves the innermost leading dim into the product: as more rows where all share one y, else as
/// its batch.
inline void take_innermost(Product& p, std::vector<Leading>& dims) {
  if (dims.empty()) return;
  const Leading dim = dims.front();
  dims.erase(dims.begin());
  if (dim.y == 0 && dim.x == 1 && !p.transpose_x) {
    p.m *= dim.size;
    return;
  }
  p.batch = dim.size;
  p.x_step = dim.x * p.m * p.k;
  p.y_step = dim.y * p.k * p.n;
}

/// The kernel of the op for floats.
void matmul(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, bool transpose_x, bool transpose_y,
            DenseTensor& out);

/// out = x * y modulo 2^bits, for integers of `bytes` bytes.
void multiply_integers(const OpContext& ctx, const Product& p, size_t bytes, const void* x, const void* y, void* out);

/// out [n] = the sums of the columns of x [rows, n], plus `added`, which may be absent. Floats.
void sum_columns(const OpContext& ctx, const DenseTensor& x, const DenseTensor& added, DenseTensor& out);

}  // namespace shard::cuda
