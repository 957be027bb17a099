// Ops of linalg.yaml that are composites of other ops.
#include "shard/ops/linalg_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/composites/fuses.h"
#include "shard/ops/api.h"

namespace shard::external {
namespace {

void check_rank(const char* op, const char* name, const Tensor& x, int rank) {
  if (x.dims().rank() != rank) {
    fail(ErrorCode::shape_mismatch, "[{}] argument '{}' is {}, but must have {} dim{}", op, name, to_string(x.dims()),
         rank, rank == 1 ? "" : "s");
  }
}

void check_same_shape(const char* op, const Tensor& x, const Tensor& y) {
  if (!(x.dims() == y.dims())) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {} and y is {}, but they must have one shape", op, to_string(x.dims()),
         to_string(y.dims()));
  }
}

/// A product of matrices, and the cost of the best order of its multiplications.
struct Chain {
  int64_t cost = 0;
  size_t split = 0;
};

/// The product of factors[first] to factors[last], in the order that `best` says.
Tensor multiplied(const std::vector<Tensor>& factors, const std::vector<std::vector<Chain>>& best, size_t first,
                  size_t last) {
  if (first == last) return factors[first];
  const size_t split = best[first][last].split;
  return matmul(multiplied(factors, best, first, split), multiplied(factors, best, split + 1, last), false, false);
}

}  // namespace

Tensor bmm(const Tensor& x, const Tensor& y) {
  check_rank("bmm", "x", x, 3);
  check_rank("bmm", "y", y, 3);
  if (x.dims()[0] != y.dims()[0]) {
    fail(ErrorCode::shape_mismatch, "[bmm] x is {} and y is {}, but their first dims must be equal",
         to_string(x.dims()), to_string(y.dims()));
  }
  return matmul(x, y, false, false);
}

Tensor mv(const Tensor& x, const Tensor& vec) {
  check_rank("mv", "x", x, 2);
  check_rank("mv", "vec", vec, 1);
  return matmul(x, vec, false, false);
}

Tensor dot(const Tensor& x, const Tensor& y) {
  check_same_shape("dot", x, y);
  if (x.dims().rank() == 1) return matmul(x, y, false, false);
  check_rank("dot", "x", x, 2);
  return squeeze(matmul(unsqueeze(x, {1}), unsqueeze(y, {2}), false, false), {1, 2});
}

Tensor dist(const Tensor& x, const Tensor& y, float p) {
  if (x.dtype() != y.dtype() || !is_floating(x.dtype())) {
    fail(ErrorCode::dtype_mismatch, "[dist] x is {} and y is {}, but both must be of one float dtype; cast them",
         to_string(x.meta()), to_string(y.meta()));
  }
  bool fits = true;
  for (int d = 1; d <= std::min(x.dims().rank(), y.dims().rank()); ++d) {
    const int64_t a = x.dims()[x.dims().rank() - d], b = y.dims()[y.dims().rank() - d];
    fits = fits && (a == b || a == 1 || b == 1);
  }
  if (!fits) {
    fail(ErrorCode::shape_mismatch, "[dist] x is {} and y is {}, but their shapes must broadcast", to_string(x.dims()),
         to_string(y.dims()));
  }
  if (std::isinf(p) && (x.numel() == 0 || y.numel() == 0)) {
    fail(ErrorCode::invalid_argument, "[dist] x is {} and y is {}, but of no elements none is the {}; use a finite p",
         to_string(x.dims()), to_string(y.dims()), p > 0 ? "farthest" : "nearest");
  }
  return p_norm(subtract(x, y), p, -1, 0, /*keepdim=*/false, /*asvector=*/true);
}

Tensor addmm(const Tensor& input, const Tensor& x, const Tensor& y, float beta, float alpha) {
  check_rank("addmm", "x", x, 2);
  check_rank("addmm", "y", y, 2);
  const auto times = [](const Tensor& tensor, float factor) {
    return factor == 1 && tensor.defined() ? tensor : scale(tensor, factor);
  };
  // One that is repeated in the result is scaled before, and not as often as it is repeated.
  const bool large = input.defined() && input.dims().numel() >= call::kFusedElements;
  const Tensor before = large ? Tensor() : times(input, beta);
  const auto multiplied = [&] { return matmul(x, y, false, false); };
  const auto added = [&](const Tensor& product) {
    const Dims &from = input.dims(), &to = product.dims();
    const int lead = to.rank() - from.rank();
    bool fits = lead >= 0;
    for (int d = 0; fits && d < from.rank(); ++d) fits = from[d] == 1 || from[d] == to[d + lead];
    if (!fits) {
      fail(ErrorCode::shape_mismatch, "[addmm] input is {}, but must broadcast to the product of x and y, which is {}",
           to_string(from), to_string(to));
    }
    return add(large ? times(input, beta) : before, times(product, alpha));
  };
  const bool fused = fuses(x.dims()[0] * y.dims()[1], input, x, y);
  return fused ? call::run_fused(multiplied, added, call::LoopKind::arithmetic) : added(multiplied());
}

Tensor cross(const Tensor& x, const Tensor& y, int axis) {
  check_same_shape("cross", x, y);
  const Dims& dims = x.dims();
  int along = -1;
  if (axis == 9) {
    for (int d = dims.rank() - 1; d >= 0; --d) along = dims[d] == 3 ? d : along;
  } else {
    along = normalize_axis("cross", "axis", axis, dims.rank());
  }
  if (along < 0 || along >= dims.rank() || dims[along] != 3) {
    fail(ErrorCode::shape_mismatch, "[cross] x is {}, but the vectors, along {}, must have 3 elements", to_string(dims),
         axis == 9 ? "any axis" : "axis " + std::to_string(axis));
  }
  const std::vector<Tensor> a = unbind(x, along), b = unbind(y, along);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < 3; ++i) {
    const size_t j = (i + 1) % 3, k = (i + 2) % 3;
    parts.push_back(subtract(multiply(a[j], b[k]), multiply(a[k], b[j])));
  }
  return stack(parts, along);
}

Tensor kron(const Tensor& x, const Tensor& y) {
  const int rank = std::max(x.dims().rank(), y.dims().rank());
  if (2 * rank > kMaxRank) {
    fail(ErrorCode::invalid_argument, "[kron] x is {} and y is {}, but may have at most {} dims", to_string(x.dims()),
         to_string(y.dims()), kMaxRank / 2);
  }
  // The dims of x and y take turns, each beside a dim of size 1 of the other.
  IntArray x_shape, y_shape, shape;
  for (int d = 0; d < rank; ++d) {
    const int in_x = d - (rank - x.dims().rank()), in_y = d - (rank - y.dims().rank());
    const int64_t rows = in_x < 0 ? 1 : x.dims()[in_x], columns = in_y < 0 ? 1 : y.dims()[in_y];
    x_shape.push_back(rows);
    x_shape.push_back(1);
    y_shape.push_back(1);
    y_shape.push_back(columns);
    shape.push_back(rows * columns);
  }
  return reshape(multiply(reshape(x, x_shape), reshape(y, y_shape)), shape);
}

Tensor multi_dot(const std::vector<Tensor>& x) {
  if (x.size() < 2)
    fail(ErrorCode::invalid_argument, "[multi_dot] there are {} matrices, but at least 2 are needed", x.size());
  std::vector<Tensor> factors = x;
  const bool row = x.front().dims().rank() == 1, column = x.back().dims().rank() == 1;
  if (row) factors.front() = unsqueeze(x.front(), {0});
  if (column) factors.back() = unsqueeze(x.back(), {1});
  const size_t count = factors.size();
  for (size_t i = 0; i < count; ++i) {
    check_rank("multi_dot", "x", factors[i], 2);
    if (i > 0 && factors[i].dims()[0] != factors[i - 1].dims()[1]) {
      fail(ErrorCode::shape_mismatch, "[multi_dot] matrix {} is {}, but must have as many rows as {} has columns", i,
           to_string(x[i].dims()), to_string(x[i - 1].dims()));
    }
  }
  std::vector<std::vector<Chain>> best(count, std::vector<Chain>(count));
  for (size_t length = 2; length <= count; ++length) {
    for (size_t first = 0; first + length <= count; ++first) {
      const size_t last = first + length - 1;
      best[first][last].cost = std::numeric_limits<int64_t>::max();
      for (size_t split = first; split < last; ++split) {
        const int64_t cost = best[first][split].cost + best[split + 1][last].cost +
                             factors[first].dims()[0] * factors[split].dims()[1] * factors[last].dims()[1];
        if (cost < best[first][last].cost) best[first][last] = {cost, split};
      }
    }
  }
  const Tensor product = multiplied(factors, best, 0, count - 1);
  IntArray dropped;
  if (row) dropped.push_back(0);
  if (column) dropped.push_back(1);
  return dropped.empty() ? product : squeeze(product, dropped);
}

Tensor cholesky_solve(const Tensor& x, const Tensor& y, bool upper) {
  const Tensor middle = triangular_solve(y, x, upper, /*transpose=*/upper, false);
  return triangular_solve(y, middle, upper, /*transpose=*/!upper, false);
}

Tensor matrix_power(const Tensor& x, int n) {
  const int rank = x.dims().rank();
  if (rank < 2 || x.dims()[rank - 1] != x.dims()[rank - 2]) {
    fail(ErrorCode::shape_mismatch, "[matrix_power] x is {}, but its last two dims must be those of square matrices",
         to_string(x.dims()));
  }
  if (n == 0) return tril(triu(full_like(x, 1), 0), 0);
  Tensor power = n < 0 ? inverse(x) : x, result;
  for (int64_t left = n < 0 ? -int64_t{n} : n;; left /= 2) {
    if (left % 2 == 1) result = result.defined() ? matmul(result, power, false, false) : power;
    if (left == 1) break;
    power = matmul(power, power, false, false);
  }
  return n == 1 ? assign(result) : result;
}

Tensor matrix_rank(const Tensor& given_x, float tol, bool use_default_tol, bool hermitian) {
  const Tensor x = given_x.detach();  // a count has no gradient
  const Tensor sizes = hermitian ? abs(std::get<0>(eigh(x, "L"))) : std::get<1>(svd(x, false));
  const Dims& dims = x.dims();
  const int rank = dims.rank();
  if (sizes.dims()[rank - 2] == 0) return sum(cast(sizes, DType::int64), {-1}, false);
  const auto most = static_cast<double>(std::max(dims[rank - 1], dims[rank - 2]));
  const Tensor least =
      use_default_tol ? scale(max(sizes, {-1}, /*keepdim=*/true), most * epsilon_of(x.dtype())) : full_like(sizes, tol);
  return sum(greater_than(sizes, least), {-1}, false);
}

}  // namespace shard::external
