// Gradients of ops of math.yaml and dynamic.yaml that are composites of other ops. Gradients of
// reductions are in reduce.cc, helpers in common.h.
#include <cmath>
#include <numbers>

#include "shard/dist/dist_tensor.h"
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/dynamic_ops.h"
#include "shard/ops/math_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::spread;
using gradients::sum_to;
using gradients::widened;

namespace {

using Pair = std::tuple<Tensor, Tensor>;

Tensor negative(const Tensor& x) { return scale(x, -1); }

/// The derivative of silu.
Tensor silu_slope(const Tensor& x) {
  const Tensor s = sigmoid(x);
  return multiply(s, scale(multiply(x, scale(s, -1, 1)), 1, 1));  // s * (1 + x * (1 - s))
}

/// The second derivative of gelu, or of its approximation x * sigmoid(w(x)).
Tensor gelu_curvature(const Tensor& x, bool approximate) {
  const Tensor near = clip(x, -40, 40);  // it is 0 outside, where powers of x may be infinite
  const Tensor squares = square(near);
  const double k = 1 / std::sqrt(2 * std::numbers::pi);
  if (!approximate) return multiply(exp(scale(squares, -0.5)), scale(squares, -k, 2 * k));
  // w = 4 k (x + a x^3), and the derivatives of s = sigmoid(w) are s (1 - s) times w' and times (1 - 2 s) w' w' + w''.
  const double a = 0.044715;
  const Tensor s = sigmoid(multiply(near, scale(squares, 4 * k * a, 4 * k)));
  const Tensor slope = scale(squares, 12 * k * a, 4 * k), bend = scale(near, 24 * k * a);
  const Tensor turn = add(multiply(square(slope), scale(s, -2, 1)), bend);
  return multiply(multiply(s, scale(s, -1, 1)), add(scale(slope, 2), multiply(near, turn)));
}

/// Passes `out_grad` to x where `to_x` holds, else to y.
Pair choose(const Tensor& to_x, const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  const Tensor zero = full_like(out_grad, 0);
  return {wanted[0] ? sum_to(where(to_x, out_grad, zero), x.dims()) : Tensor(),
          wanted[1] ? sum_to(where(to_x, zero, out_grad), y.dims()) : Tensor()};
}

}  // namespace

Pair add_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return {wanted[0] ? sum_to(out_grad, x.dims()) : Tensor(), wanted[1] ? sum_to(out_grad, y.dims()) : Tensor()};
}

Pair subtract_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return {wanted[0] ? sum_to(out_grad, x.dims()) : Tensor(),
          wanted[1] ? negative(sum_to(out_grad, y.dims())) : Tensor()};
}

Pair multiply_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return {wanted[0] ? sum_to(multiply(out_grad, y), x.dims()) : Tensor(),
          wanted[1] ? sum_to(multiply(out_grad, x), y.dims()) : Tensor()};
}

Pair divide_grad(const Tensor& x, const Tensor& y, const Tensor& out, const Tensor& out_grad, GradMask wanted) {
  const Tensor quotient = divide(out_grad, y);
  return {wanted[0] ? sum_to(quotient, x.dims()) : Tensor(),
          wanted[1] ? negative(sum_to(multiply(quotient, out), y.dims())) : Tensor()};
}

Pair maximum_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return choose(greater_than(x, y), x, y, out_grad, wanted);
}

Pair minimum_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return choose(less_than(x, y), x, y, out_grad, wanted);
}

Pair where_grad(const Tensor& condition, const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return choose(condition, x, y, out_grad, wanted);
}

Pair fmax_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return choose(logical_or(greater_equal(x, y), isnan(y)), x, y, out_grad, wanted);
}

Pair fmin_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  return choose(logical_or(less_equal(x, y), isnan(y)), x, y, out_grad, wanted);
}

Pair atan2_grad(const Tensor& given_x, const Tensor& given_y, const Tensor& out_grad, GradMask wanted) {
  const Tensor x = widened(given_x), y = widened(given_y);
  const Tensor per_square = divide(widened(out_grad), add(square(x), square(y)));
  const DType dtype = out_grad.dtype();
  return {wanted[0] ? narrowed(sum_to(multiply(per_square, y), x.dims()), dtype) : Tensor(),
          wanted[1] ? narrowed(negative(sum_to(multiply(per_square, x), y.dims())), dtype) : Tensor()};
}

Pair copysign_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  const Tensor one = full_like(x, 1);
  const Tensor sign_of_x = copysign(where(logical_not(x), full_like(x, 0), one), x), sign_of_y = copysign(one, y);
  return {wanted[0] ? sum_to(multiply(out_grad, multiply(sign_of_x, sign_of_y)), x.dims()) : Tensor(),
          wanted[1] ? sum_to(full_like(out_grad, 0), y.dims()) : Tensor()};
}

Pair heaviside_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  const Tensor zero = full_like(out_grad, 0);
  return {wanted[0] ? sum_to(zero, x.dims()) : Tensor(),
          wanted[1] ? sum_to(where(logical_not(x), out_grad, zero), y.dims()) : Tensor()};
}

Pair lerp_grad(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& out_grad, GradMask wanted) {
  return {wanted[0] ? sum_to(multiply(out_grad, scale(weight, -1, 1)), x.dims()) : Tensor(),
          wanted[1] ? sum_to(multiply(out_grad, weight), y.dims()) : Tensor()};
}

Pair elementwise_pow_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, GradMask wanted) {
  Pair grads;
  if (wanted[0]) {
    // 0 * x^1 is 0 even at x = 0, where 0 * x^-1 is NaN.
    const Tensor less = where(logical_not(y), full_like(y, 1), scale(y, 1, -1));
    std::get<0>(grads) = sum_to(multiply(out_grad, multiply(y, elementwise_pow(x, less))), x.dims());
  }
  if (wanted[1]) {
    // Uses the logarithm of 1 instead of that of 0: 0^y is constant for y > 0.
    const Tensor base = where(logical_not(x), full_like(x, 1), x);
    std::get<1>(grads) = sum_to(multiply(out_grad, multiply(elementwise_pow(x, y), log(base))), y.dims());
  }
  return grads;
}

Tensor assign_grad(const Tensor& out_grad) { return out_grad; }

Tensor cast_grad(const Tensor& x, const Tensor& out_grad) {
  return x.dtype() == out_grad.dtype() ? out_grad : cast(out_grad, x.dtype());
}

std::vector<Tensor> add_n_grad(const std::vector<Tensor>& inputs, const Tensor& out_grad) {
  return std::vector<Tensor>(inputs.size(), out_grad);
}

Tensor cumsum_grad(const Tensor& x, const Tensor& out_grad, const Scalar& axis, bool flatten, bool exclusive,
                   bool reverse) {
  if (!flatten) return cumsum(out_grad, axis, false, exclusive, !reverse);
  if (x.dims().numel() == 0) return spread(sum(out_grad), x);  // a 0 in the shape argument of reshape keeps a dim
  return reshape(cumsum(out_grad, 0, false, exclusive, !reverse), x.dims());
}

namespace {

/// Whether [b.., r, c] can become [b * r, c] without communication: on a mesh, only where just the
/// first dim is sharded, into equal shards.
bool rows_join(const Tensor& x) {
  if (x.dims().numel() == 0) return false;
  if (!x.is_dist()) return true;
  const DistSpec& spec = *spec_of(x);
  for (int d = 1; d + 1 < spec.rank(); ++d) {
    if (!spec.axes(d).empty()) return false;
  }
  int64_t shards = 1;
  for (int i = 0; i < spec.axes(0).size(); ++i) shards *= spec.mesh()->size(spec.axes(0)[i]);
  return x.dims()[0] % shards == 0;
}

Tensor join_rows(const Tensor& x) {
  const int64_t columns = x.dims()[x.dims().rank() - 1];
  int64_t rows = 1;
  for (int d = 0; d + 1 < x.dims().rank(); ++d) rows *= x.dims()[d];
  return reshape(x, {rows, columns});
}

/// The gradient of y, a matrix or more, for x a matrix or more: x' * out_grad, or swapped.
Tensor matmul_grad_y(const Tensor& x, const Tensor& y, const Tensor& g, bool transpose_x, bool transpose_y) {
  const auto product = [&](const Tensor& a, const Tensor& b) {
    return transpose_y ? matmul(b, a, true, transpose_x) : matmul(a, b, !transpose_x, false);
  };
  // A weight for a batch of rows: one product of all rows instead of a product per matrix of the
  // batch and their sum.
  const bool batch_of_rows = x.dims().rank() > 2 && y.dims().rank() == 2 && !transpose_x;
  if (batch_of_rows && rows_join(x) && rows_join(g)) return product(join_rows(x), join_rows(g));
  return sum_to(product(x, g), y.dims());
}

}  // namespace

Pair matmul_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad, bool transpose_x, bool transpose_y,
                 GradMask wanted) {
  // Vectors are treated as a row and a column, whose dims out_grad lacks; the flags do not apply to
  // them.
  const bool row = x.dims().rank() == 1, column = y.dims().rank() == 1;
  const int rank = out_grad.dims().rank();
  const IntArray lacking = row && column ? IntArray{rank, rank + 1} : row ? IntArray{rank - 1} : IntArray{rank};
  const Tensor g = row || column ? unsqueeze(out_grad, lacking) : out_grad;
  const Tensor a = row ? unsqueeze(x, {0}) : x;
  const Tensor b = column ? unsqueeze(y, {1}) : y;
  const bool swap_a = transpose_x && !row, swap_b = transpose_y && !column;
  Pair grads;
  if (wanted[0]) {
    const Tensor grad = sum_to(swap_a ? matmul(b, g, swap_b, true) : matmul(g, b, false, !swap_b), a.dims());
    std::get<0>(grads) = row ? squeeze(grad, {0}) : grad;
  }
  if (wanted[1]) {
    const Tensor grad = matmul_grad_y(a, b, g, swap_a, swap_b);
    std::get<1>(grads) = column ? squeeze(grad, {1}) : grad;
  }
  return grads;
}

Tensor masked_select_grad(const Tensor& x, const Tensor& mask, const Tensor& out_grad) {
  const int64_t count = out_grad.dims()[0];
  if (count == 0) return cast(full_like(mask, 0), x.dtype());
  // The number of true elements before a position in the row-major order of mask is the index of
  // the last of them, plus one.
  const Tensor flat = reshape(mask, {mask.dims().numel()});
  const Tensor place = clip(scale(cumsum(cast(flat, DType::int64), 0), 1, -1), 0, count - 1);
  const Tensor values = gather(out_grad, place);
  return reshape(where(flat, values, full_like(values, 0)), x.dims());
}

// Recorded calls of these ops run here, not in the kernels of the same names.

Tensor silu_grad(const Tensor& x, const Tensor& out_grad) {
  return narrowed(multiply(widened(out_grad), silu_slope(widened(x))), x.dtype());
}

Pair swiglu_grad(const Tensor& x, const Tensor& y, const Tensor& out_grad) {
  if (!y.defined()) {
    const int last = x.dims().rank() - 1;
    const std::vector<Tensor> halves = split_with_num(x, 2, last);
    const auto [first, second] = external::swiglu_grad(halves[0], halves[1], out_grad);
    return {concat({first, second}, last), Tensor()};
  }
  const Tensor gate = widened(x), grad = widened(out_grad);
  return {narrowed(multiply(multiply(grad, widened(y)), silu_slope(gate)), x.dtype()),
          narrowed(multiply(grad, silu(gate)), y.dtype())};
}

// Gradients of gradients. `grad_x_grad` is the gradient of x_grad, and `grad_out` is the argument
// out_grad of the first gradient.

Pair exp_double_grad(const Tensor& out, const Tensor& grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? multiply(grad_x_grad, grad_out) : Tensor(), wanted[1] ? exp_grad(out, grad_x_grad) : Tensor()};
}

Pair log_double_grad(const Tensor& x, const Tensor& grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  const Tensor quotient = log_grad(x, grad_x_grad);
  return {wanted[0] ? negative(multiply(quotient, log_grad(x, grad_out))) : Tensor(), quotient};
}

Pair tanh_double_grad(const Tensor& out, const Tensor& grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? scale(multiply(multiply(grad_x_grad, grad_out), out), -2) : Tensor(),
          wanted[1] ? tanh_grad(out, grad_x_grad) : Tensor()};
}

Pair sqrt_double_grad(const Tensor& out, const Tensor& grad_x, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? negative(divide(multiply(grad_x_grad, grad_x), out)) : Tensor(),
          wanted[1] ? sqrt_grad(out, grad_x_grad) : Tensor()};
}

Pair rsqrt_double_grad(const Tensor& out, const Tensor& grad_x, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? scale(divide(multiply(grad_x_grad, grad_x), out), 3) : Tensor(),
          wanted[1] ? rsqrt_grad(out, grad_x_grad) : Tensor()};
}

Pair sigmoid_double_grad(const Tensor& out, const Tensor& fwd_grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? multiply(multiply(grad_x_grad, fwd_grad_out), scale(out, -2, 1)) : Tensor(),
          wanted[1] ? sigmoid_grad(out, grad_x_grad) : Tensor()};
}

Pair sin_double_grad(const Tensor& x, const Tensor& grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? cos_grad(x, multiply(grad_x_grad, grad_out)) : Tensor(),
          wanted[1] ? sin_grad(x, grad_x_grad) : Tensor()};
}

Pair cos_double_grad(const Tensor& x, const Tensor& grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? negative(sin_grad(x, multiply(grad_x_grad, grad_out))) : Tensor(),
          wanted[1] ? cos_grad(x, grad_x_grad) : Tensor()};
}

Pair square_double_grad(const Tensor& x, const Tensor& grad_out, const Tensor& grad_x_grad, GradMask wanted) {
  return {wanted[0] ? square_grad(grad_out, grad_x_grad) : Tensor(),
          wanted[1] ? square_grad(x, grad_x_grad) : Tensor()};
}

Pair pow_double_grad(const Tensor& x, const Tensor& grad_out, const Tensor& grad_x_grad, const Scalar& y,
                     GradMask wanted) {
  const double exponent = y.to<double>();
  return {wanted[0] ? scale(pow_grad(x, multiply(grad_x_grad, grad_out), exponent - 1), exponent) : Tensor(),
          wanted[1] ? pow_grad(x, grad_x_grad, y) : Tensor()};
}

Pair gelu_double_grad(const Tensor& x, const Tensor& grad_out, const Tensor& grad_x_grad, bool approximate,
                      GradMask wanted) {
  Pair grads;
  if (wanted[0]) {
    const Tensor product = multiply(widened(grad_x_grad), widened(grad_out));
    std::get<0>(grads) = narrowed(multiply(product, gelu_curvature(widened(x), approximate)), x.dtype());
  }
  if (wanted[1]) std::get<1>(grads) = gelu_grad(x, grad_x_grad, approximate);
  return grads;
}

}  // namespace shard::external
