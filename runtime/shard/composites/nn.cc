// Layers of nn.yaml that are made of other ops.
#include "shard/core/error.h"
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/nn_ops.h"

namespace shard::external {
namespace {

void check_vector(const char* name, const Tensor& x, int64_t size, const Tensor& weight) {
  if (x.dims() == Dims{size}) return;
  fail(ErrorCode::shape_mismatch, "[spectral_norm] {} is {}, but must be [{}] for the weight {}", name,
       to_string(x.meta()), size, to_string(weight.meta()));
}

/// x divided by its norm plus eps.
Tensor unit(const Tensor& x, float eps) { return divide(x, scale(sqrt(sum(multiply(x, x))), 1, eps)); }

}  // namespace

Tensor spectral_norm(const Tensor& weight, const Tensor& u, const Tensor& v, int dim, int power_iters, float eps) {
  const int rank = weight.dims().rank();
  const int axis = normalize_axis("spectral_norm", "dim", dim, rank);
  if (power_iters < 0)
    fail(ErrorCode::invalid_argument, "[spectral_norm] power_iters is {}, but must be 0 or more", power_iters);
  const int64_t rows = weight.dims()[axis],
                columns = weight.dims().numel(0, axis) * weight.dims().numel(axis + 1, rank);
  check_vector("u", u, rows, weight);
  check_vector("v", v, columns, weight);
  IntArray rows_first = {axis};
  for (int d = 0; d < rank; ++d) {
    if (d != axis) rows_first.push_back(d);
  }
  const Tensor wide = gradients::widened(weight);
  const Tensor matrix = reshape(axis == 0 ? wide : transpose(wide, rows_first), {rows, columns});
  const Tensor fixed = matrix.detach();
  Tensor left = gradients::widened(u.detach()), right = gradients::widened(v.detach());
  for (int i = 0; i < power_iters; ++i) {
    right = unit(matmul(fixed, left, /*transpose_x=*/true, false), eps);
    left = unit(matmul(fixed, right, false, false), eps);
  }
  const Tensor sigma = sum(multiply(left, matmul(matrix, right, false, false)));
  return gradients::narrowed(divide(wide, sigma), weight.dtype());
}

}  // namespace shard::external
