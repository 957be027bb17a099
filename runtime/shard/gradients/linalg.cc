// Gradients of ops of linalg.yaml, which are composites of other ops.
#include "shard/ops/linalg_ops.h"

#include <algorithm>
#include <string>
#include <vector>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"

namespace shard::external {

using gradients::sum_to;
using Pair = std::tuple<Tensor, Tensor>;

namespace {

/// The transposed matrices of x.
Tensor transposed(const Tensor& x) {
  const int rank = x.dims().rank();
  IntArray perm;
  for (int d = 0; d < rank; ++d) perm.push_back(d);
  std::swap(perm[static_cast<size_t>(rank - 1)], perm[static_cast<size_t>(rank - 2)]);
  return transpose(x, perm);
}

/// The product of the transposed matrices of x with those of y.
Tensor transposed_times(const Tensor& x, const Tensor& y) { return matmul(x, y, /*transpose_x=*/true); }

/// The product of the matrices of x with the transposed ones of y.
Tensor times_transposed(const Tensor& x, const Tensor& y) { return matmul(x, y, false, /*transpose_y=*/true); }

Tensor symmetric_half(const Tensor& x) { return scale(add(x, transposed(x)), 0.5); }

/// 1 / x, and 0 where x is 0.
Tensor reciprocal_or_0(const Tensor& x) {
  const Tensor zero = logical_not(x);
  return where(zero, full_like(x, 0), reciprocal(where(zero, full_like(x, 1), x)));
}

/// 1 / (x[j] - x[i]) at row i and column j, and 0 where both are equal, as on the diagonal.
Tensor reciprocal_differences(const Tensor& x) {
  return reciprocal_or_0(subtract(unsqueeze(x, {-2}), unsqueeze(x, {-1})));
}

/// The matrices of x, of which the columns are multiplied by the elements of `factors`.
Tensor scaled_columns(const Tensor& x, const Tensor& factors) { return multiply(x, unsqueeze(factors, {-2})); }

/// The first `count` slices of x along `axis`.
Tensor first_of(const Tensor& x, int axis, int64_t count) {
  const int at = axis + x.dims().rank();
  return x.dims()[at] == count ? x : slice(x, {at}, {0}, {count});
}

/// Those of the matrices of x in rows from `top` to before `bottom` and columns from `left` to before `right`.
Tensor block(const Tensor& x, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  const int rank = x.dims().rank();
  return slice(x, {rank - 2, rank - 1}, {top, left}, {bottom, right});
}

}  // namespace

Tensor cholesky_grad(const Tensor& out, const Tensor& out_grad, bool upper) {
  const Tensor factor = upper ? transposed(out) : out, grad = upper ? transposed(out_grad) : out_grad;
  const Tensor product = transposed_times(factor, grad);
  const Tensor middle = scale(add(tril(product, 0), tril(product, -1)), 0.5);
  const auto by_factor = [&](const Tensor& y) { return triangular_solve(factor, y, false, /*transpose=*/true, false); };
  return symmetric_half(by_factor(transposed(by_factor(middle))));
}

Pair triangular_solve_grad(const Tensor& x, const Tensor& y, const Tensor& out, const Tensor& out_grad, bool upper,
                           bool transpose, bool unitriangular, GradMask wanted) {
  const Tensor y_grad = triangular_solve(x, out_grad, upper, !transpose, unitriangular);
  Tensor x_grad;
  if (wanted[0]) {
    const Tensor product = transpose ? times_transposed(out, y_grad) : times_transposed(y_grad, out);
    const int diagonal = unitriangular ? 1 : 0;
    const Tensor triangle = upper ? triu(product, diagonal) : tril(product, -diagonal);
    x_grad = sum_to(scale(triangle, -1), x.dims());
  }
  return {x_grad, wanted[1] ? sum_to(y_grad, y.dims()) : Tensor()};
}

Pair solve_grad(const Tensor& x, const Tensor& y, const Tensor& out, const Tensor& out_grad, GradMask wanted) {
  const bool vector = y.dims().rank() == 1;
  const auto columns = [&](const Tensor& value) { return vector ? unsqueeze(value, {-1}) : value; };
  const Tensor y_grad = solve(transposed(x), columns(out_grad));
  return {wanted[0] ? sum_to(scale(times_transposed(y_grad, columns(out)), -1), x.dims()) : Tensor(),
          wanted[1] ? sum_to(vector ? squeeze(y_grad, {-1}) : y_grad, y.dims()) : Tensor()};
}

Tensor inverse_grad(const Tensor& out, const Tensor& out_grad) {
  return scale(transposed_times(out, times_transposed(out_grad, out)), -1);
}

Tensor det_grad(const Tensor& x, const Tensor& out, const Tensor& out_grad) {
  return multiply(unsqueeze(multiply(out_grad, out), {-1, -2}), transposed(inverse(x)));
}

Tensor slogdet_grad(const Tensor& x, const Tensor& out_grad) {
  const Tensor of_logarithm = unbind(out_grad, 0)[1];  // the sign is piecewise constant
  return multiply(unsqueeze(of_logarithm, {-1, -2}), transposed(inverse(x)));
}

Tensor eigh_grad(const Tensor& w, const Tensor& v, const Tensor& w_grad, const Tensor& v_grad) {
  const Tensor of_vectors = multiply(transposed_times(v, v_grad), reciprocal_differences(w));
  const Tensor left = add(scaled_columns(v, w_grad), matmul(v, of_vectors));
  return symmetric_half(times_transposed(left, v));
}

Tensor svd_grad(const Tensor& full_u, const Tensor& s, const Tensor& full_vh, const Tensor& full_u_grad,
                const Tensor& s_grad, const Tensor& full_vh_grad) {
  const int64_t k = s.dims()[s.dims().rank() - 1];
  const Tensor u = first_of(full_u, -1, k), u_grad = first_of(full_u_grad, -1, k);
  const Tensor vh = first_of(full_vh, -2, k), vh_grad = first_of(full_vh_grad, -2, k);
  const Tensor of_squares = reciprocal_differences(square(s));
  const auto skew = [&](const Tensor& x) { return multiply(subtract(x, transposed(x)), of_squares); };
  const Tensor of_u = scaled_columns(skew(transposed_times(u, u_grad)), s);
  const Tensor of_v = multiply(unsqueeze(s, {-1}), skew(times_transposed(vh, vh_grad)));
  const Tensor left = add(matmul(u, add(of_u, of_v)), scaled_columns(u, s_grad));
  Tensor grad = matmul(left, vh);
  const int64_t m = u.dims()[u.dims().rank() - 2], n = vh.dims()[vh.dims().rank() - 1];
  if (m > k) {  // what of the gradient of u is orthogonal to all of its columns
    const Tensor scaled = scaled_columns(u_grad, reciprocal_or_0(s));
    grad = add(grad, matmul(subtract(scaled, matmul(u, transposed_times(u, scaled))), vh));
  }
  if (n > k) {
    const Tensor scaled = scaled_columns(u, reciprocal_or_0(s));
    grad = add(grad, matmul(scaled, subtract(vh_grad, matmul(times_transposed(vh_grad, vh), vh))));
  }
  return grad;
}

Tensor qr_grad(const Tensor& x, const Tensor& q, const Tensor& r, const Tensor& q_grad, const Tensor& r_grad,
               const std::string& mode) {
  const int rank = x.dims().rank();
  const int64_t m = x.dims()[rank - 2], n = x.dims()[rank - 1];
  if (mode == "r" || (mode == "reduced" ? m < n : m != n)) {
    fail(ErrorCode::invalid_argument,
         "[qr] mode is '{}' and x is {}, but there are gradients only of 'reduced' for matrices with at least as many "
         "rows as columns, and of 'complete' for square ones",
         mode, to_string(x.dims()));
  }
  const Tensor product = subtract(times_transposed(r, r_grad), transposed_times(q_grad, q));
  const Tensor mirrored = add(tril(product, 0), transposed(tril(product, -1)));
  const Tensor side = add(q_grad, matmul(q, mirrored));
  return transposed(triangular_solve(r, transposed(side)));
}

Tensor lu_grad(const Tensor& out, const Tensor& pivots, const Tensor& out_grad, bool pivot) {
  const int rank = out.dims().rank();
  const int64_t m = out.dims()[rank - 2], n = out.dims()[rank - 1], k = std::min(m, n);
  if (k == 0) return out_grad;
  const Tensor factors = block(out, 0, k, 0, k), grad = block(out_grad, 0, k, 0, k);
  const Tensor lower_grad = tril(grad, -1), upper_grad = triu(grad, 0);
  // The products of the transposed lower factor, which has a diagonal of ones, and with the transposed upper one.
  Tensor of_lower = add(lower_grad, transposed_times(tril(factors, -1), lower_grad));
  Tensor of_upper = times_transposed(upper_grad, triu(factors, 0));
  const auto by_lower = [&](const Tensor& y) { return triangular_solve(factors, y, false, /*transpose=*/true, true); };
  const auto by_upper = [&](const Tensor& y) {
    try {
      return transposed(triangular_solve(factors, transposed(y)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      fail(error.code(), "[lu_grad] a matrix that was decomposed is singular, and so has no gradient: {}",
           error.what());
    }
  };
  std::vector<Tensor> parts;
  if (n > k) {
    const Tensor right_grad = block(out_grad, 0, k, k, n);
    of_lower = subtract(of_lower, times_transposed(right_grad, block(out, 0, k, k, n)));
    parts.push_back(by_lower(right_grad));
  } else if (m > k) {
    const Tensor below_grad = block(out_grad, k, m, 0, k);
    of_upper = subtract(of_upper, transposed_times(block(out, k, m, 0, k), below_grad));
    parts.push_back(by_upper(below_grad));
  }
  parts.insert(parts.begin(), by_upper(by_lower(add(tril(of_lower, -1), triu(of_upper, 0)))));
  const Tensor in_order = parts.size() == 1 ? parts[0] : concat(parts, n > k ? rank - 1 : rank - 2);
  return pivot ? matmul(std::get<0>(lu_unpack(out.detach(), pivots, false, true)), in_order) : in_order;
}

Tensor lu_unpack_grad(const Tensor& x, const Tensor& l_grad, const Tensor& u_grad, bool unpack_ludata) {
  if (!unpack_ludata) return full_like(x, 0);
  const int rank = x.dims().rank();
  const int64_t m = x.dims()[rank - 2], n = x.dims()[rank - 1], k = std::min(m, n);
  Tensor lower = tril(l_grad, -1), upper = triu(u_grad, 0);
  if (n > k) lower = concat({lower, full_like(block(u_grad, 0, k, k, n), 0)}, rank - 1);
  if (m > k) upper = concat({upper, full_like(block(l_grad, k, m, 0, k), 0)}, rank - 2);
  return add(lower, upper);
}

}  // namespace shard::external
