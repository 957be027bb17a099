// LU decompositions and least squares: values of NumPy and SciPy, products that give the argument back, singular and
// empty matrices, gradients, and errors.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "gradients/central_difference.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test::linalg_lu_test {
namespace {

using Values = std::vector<double>;
using Tensors = std::vector<Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor of(const Values& numbers, const Dims& dims) { return Tensor::from_data(numbers, dims); }
Tensor pivots_of(const std::vector<int32_t>& rows) {
  return Tensor::from_data(rows, {static_cast<int64_t>(rows.size())});
}
std::vector<int32_t> integers(const Tensor& x) { return x.to_vector<int32_t>(); }

/// Equal up to an absolute tolerance.
bool is_close(const Tensor& got, const Tensor& expected, double tolerance = 1e-12) {
  if (!(got.dims() == expected.dims()) || got.dtype() != expected.dtype()) return false;
  const Values a = cast(got, DType::float64).to_vector<double>(),
               b = cast(expected, DType::float64).to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= tolerance)) return false;
  }
  return true;
}

double number(const Tensor& x) { return x.to_vector<double>()[0]; }
Tensor flipped(const Tensor& x) { return transpose(x, {1, 0}); }

const Tensor& tall() {
  static const Tensor x = of({4, 3, 2, 1, 7, 5, 2, 2, 9, 1, 0, 1}, {4, 3});
  return x;
}

Tensor product(const Tensor& x, bool pivot = true) {
  const auto [packed, pivots, infos] = lu(x, pivot);
  const auto [p, l, u] = lu_unpack(packed, pivots);
  return matmul(p, matmul(l, u));
}

}  // namespace

TEST_CASE("lu has the factors and pivots of LAPACK") {
  const auto [out, pivots, infos] = lu(tall());
  CHECK(is_close(out, of({4, 3, 2, 0.25, 6.25, 4.5, 0.5, 0.08, 7.64, 0.25, -0.12, 1.04 / 7.64}, {4, 3})));
  CHECK(integers(pivots) == std::vector<int32_t>{1, 2, 3});
  CHECK(infos.dims() == Dims{});
  CHECK(integers(infos) == std::vector<int32_t>{0});
  const Tensor square = of({0, 2, 1, 1, 1, 0, 3, 0, 1}, {3, 3});
  const auto [packed, exchanged, info] = lu(square);
  CHECK(is_close(packed, of({3, 0, 1, 0, 2, 1, 1 / 3.0, 0.5, -5 / 6.0}, {3, 3})));
  CHECK(integers(exchanged) == std::vector<int32_t>{3, 3, 3});
  CHECK(exchanged.dtype() == DType::int32);
  CHECK(info.dtype() == DType::int32);
}

TEST_CASE("the product of the factors of lu is the matrix, of any shape and in batches") {
  const Tensor wide = flipped(tall()), square = slice(tall(), {0}, {1}, {4});
  for (const Tensor& x : {tall(), wide, square, stack({wide, scale(wide, -2)}, 0)}) {
    CHECK(is_close(product(x), x));
    CHECK(is_close(product(cast(x, DType::float32)), cast(x, DType::float32), 1e-5));
    CHECK(is_close(product(x, false), x));
  }
  Tensor target = assign(tall());
  const Tensor& out = std::get<0>(lu_(target));
  CHECK(is_close(target, std::get<0>(lu(tall())), 0));
  CHECK(&out == &target);
}

TEST_CASE("lu counts the first pivot that is 0 and without pivots divides by it") {
  const Tensor x = of({0, 1, 2, 3, 4, 5, 0, 1, 2}, {3, 3});
  const auto [packed, pivots, infos] = lu(x);
  CHECK(integers(infos) == std::vector<int32_t>{3});
  CHECK(is_close(product(x), x));
  const auto [out, rows, zero] = lu(x, false);
  CHECK(integers(rows) == std::vector<int32_t>{1, 2, 3});
  CHECK(integers(zero) == std::vector<int32_t>{1});
  CHECK(out.to_vector<double>()[3] == kInfinity);
  CHECK(out.to_vector<double>()[6] == 0);
}

TEST_CASE("lu and lu_unpack of empty matrices") {
  for (const Dims& dims : {Dims{2, 0, 3}, Dims{2, 3, 0}, Dims{0, 2, 2}}) {
    const auto [out, pivots, infos] = lu(zeros(dims));
    const auto [p, l, u] = lu_unpack(out, pivots);
    const int64_t b = dims[0], m = dims[1], n = dims[2], k = std::min(m, n);
    CHECK(pivots.dims() == Dims{b, k});
    CHECK(integers(infos) == std::vector<int32_t>(static_cast<size_t>(b), 0));
    CHECK(l.dims() == Dims{b, m, k});
    CHECK(u.dims() == Dims{b, k, n});
    CHECK(is_close(p, expand(eye(m, m), {b, m, m})));
    const Tensor x = zeros(dims).set_requires_grad(true);
    std::get<0>(lu(x)).backward(zeros(dims));
    CHECK(x.grad().dims() == dims);
  }
}

TEST_CASE("lu_unpack leaves out what is not wanted and refuses pivots that are no rows") {
  const Tensor x = of({1, 2, 3, 4}, {2, 2});
  const auto [p, l, u] = lu_unpack(x, pivots_of({2, 2}), false, true);
  CHECK(is_close(p, of({0, 1, 1, 0}, {2, 2})));
  CHECK(l.dims() == Dims{2, 0});
  CHECK(u.dims() == Dims{0, 2});
  const auto [no_p, lower, upper] = lu_unpack(x, pivots_of({0, 9}), true, false);
  CHECK(no_p.dims() == Dims{2, 0});
  CHECK(is_close(lower, of({1, 0, 3, 1}, {2, 2})));
  CHECK(is_close(upper, of({1, 2, 0, 4}, {2, 2})));
  check_refused([&] { lu_unpack(x, pivots_of({0, 2})); }, ErrorCode::out_of_range, "y is 0 at element 0");
  check_refused([&] { lu_unpack(x, pivots_of({1, 3})); }, ErrorCode::out_of_range, "from 1 to 2");
  check_refused([&] { lu_unpack(x, pivots_of({1})); }, ErrorCode::shape_mismatch, "pass what lu returned");
  check_refused([&] { lu_unpack(x, cast(pivots_of({1, 2}), DType::int64)); }, ErrorCode::dtype_mismatch, "i32[2]");
  check_refused([] { lu(zeros({3})); }, ErrorCode::shape_mismatch, "those of matrices");
  check_refused([] { lu(zeros({2, 2}, DType::int32)); }, ErrorCode::dtype_mismatch, "float32 or float64");
}

TEST_CASE("gradients through lu and lu_unpack are those of central differences") {
  const auto factors = [](bool pivot) {
    return [=](const Tensors& t) {
      const auto [packed, pivots, infos] = lu(t[0], pivot);
      const auto [p, l, u] = lu_unpack(packed, pivots);
      return concat({reshape(l, {l.numel()}), reshape(u, {u.numel()})}, 0);
    };
  };
  const auto gradient_of = [](const ForwardFunction& function) {
    return [=](const Tensors& at, const Tensor& out_grad) {
      const Tensor x = at[0].detach().set_requires_grad(true);
      function({x}).backward(out_grad);
      return Tensors{x.grad()};
    };
  };
  const Tensor square = slice(tall(), {0}, {0}, {3});
  for (const Tensor& x : {tall(), flipped(tall()), square}) {
    for (const bool pivot : {true, false})
      CHECK(gradient_difference(factors(pivot), gradient_of(factors(pivot)), {x}) == "");
  }
  const Tensor singular = of({1, 2, 2, 4}, {2, 2}).set_requires_grad(true);
  error_of([&] { sum(std::get<0>(lu(singular))).backward(); }, ErrorCode::invalid_argument);
}

TEST_CASE("lstsq has the solutions, sums, rank and singular values of NumPy") {
  const Tensor y = of({1, 0, 2, 1, 0, 1, -1, 2}, {4, 2});
  const Tensor expected = of({-0.03033220991815133, 0.025036109773712026, 0.36994146415629836, 0.011276385475001968,
                              -0.08879203304361044, 0.1309327724704153},
                             {3, 2});
  for (const std::string driver : {"gels", "gelsy", "gelsd", "gelss"}) {
    INFO(driver);
    const auto [solution, residuals, rank, values] = lstsq(tall(), y, 0, driver);
    CHECK(is_close(solution, expected));
    const Tensor left = subtract(y, matmul(tall(), solution));
    CHECK(integers(rank) == std::vector<int32_t>{3});
    if (driver == "gelsy") CHECK(residuals.dims() == Dims{0});
    else CHECK(is_close(residuals, sum(square(left), {0})));
    if (driver == "gelsd" || driver == "gelss") CHECK(is_close(values, std::get<1>(svd(tall()))));
    else CHECK(values.dims() == Dims{0});
    const Tensor wide = flipped(tall());
    const auto [shortest, none, full_rank, all] =
        lstsq(stack({wide, scale(wide, 2)}, 0), full({2, 3, 1}, 1, DType::float64), 0, driver);
    CHECK(is_close(matmul(wide, shortest[0]), full({3, 1}, 1, DType::float64)));
    CHECK(is_close(scale(shortest[1], 2), shortest[0]));
    // The shortest one is a combination of the rows of x: what is orthogonal to them has no part of it.
    CHECK(is_close(matmul(slice(std::get<2>(svd(wide, true)), {0}, {3}, {4}), shortest[0]),
                   zeros({1, 1}, DType::float64)));
    CHECK(none.dims() == Dims{2, 0});
    CHECK(integers(full_rank) == std::vector<int32_t>{3, 3});
  }
}

TEST_CASE("lstsq of matrices without full rank has the shortest solution") {
  const Tensor x = of({1, 2, 2, 4, 3, 6}, {3, 2}), y = of({5, 10, 15}, {3, 1});
  for (const std::string driver : {"gelsy", "gelsd", "gelss"}) {
    const auto [solution, residuals, rank, values] = lstsq(x, y, 1e-10, driver);
    CHECK(is_close(solution, of({1, 2}, {2, 1})));
    CHECK(integers(rank) == std::vector<int32_t>{1});
  }
  const auto [zero, sums, no_rank, values] = lstsq(zeros({3, 2}, DType::float64), y);
  CHECK(is_close(zero, zeros({2, 1}, DType::float64)));
  CHECK(is_close(sums, full({1}, 350, DType::float64)));
  CHECK(integers(no_rank) == std::vector<int32_t>{0});
  const Tensor column = of({1, 0, 2, 0, 3, 0}, {3, 2});
  check_refused(
      [&] {
        lstsq(stack({of({1, 0, 0, 1, 1, 1}, {3, 2}), column}, 0), stack({y, y}, 0));
      },
      ErrorCode::invalid_argument, "the matrix is at [1]");
  check_refused(
      [] {
        lstsq(full({2, 2}, kInfinity), zeros({2, 1}), 0, "gelsd");
      },
      ErrorCode::invalid_argument, "not finite");
}

TEST_CASE("lstsq without equations, unknowns or sides") {
  for (const std::string driver : {"gels", "gelsy", "gelsd", "gelss"}) {
    INFO(driver);
    const auto [none, r0, rank0, s0] = lstsq(zeros({2, 0, 3}), zeros({2, 0, 1}), 0, driver);
    CHECK(is_close(none, zeros({2, 3, 1})));
    CHECK(integers(rank0) == std::vector<int32_t>{0, 0});
    const auto [no_unknowns, r1, rank1, s1] = lstsq(zeros({2, 0}), full({2, 1}, 3), 0, driver);
    CHECK(no_unknowns.dims() == Dims{0, 1});
    if (driver != "gelsy") CHECK(is_close(r1, full({1}, 18)));
    const auto [no_sides, r2, rank2, s2] = lstsq(tall(), zeros({4, 0}, DType::float64), 0, driver);
    CHECK(no_sides.dims() == Dims{3, 0});
    CHECK(integers(rank2) == std::vector<int32_t>{3});
    CHECK(std::get<0>(lstsq(zeros({0, 3, 2}), zeros({0, 3, 1}), 0, driver)).dims() == Dims{0, 2, 1});
  }
}

TEST_CASE("lstsq refuses other drivers, shapes and dtypes") {
  const Tensor x = zeros({2, 3, 2});
  check_refused([&] { lstsq(x, zeros({2, 3, 1}), 0, "gelsx"); }, ErrorCode::invalid_argument, "driver is 'gelsx'");
  check_refused([&] { lstsq(x, zeros({2, 2, 1})); }, ErrorCode::shape_mismatch, "as many rows");
  check_refused([&] { lstsq(x, zeros({3, 1})); }, ErrorCode::shape_mismatch, "same leading dims");
  check_refused([&] { lstsq(x, zeros({2, 3, 1}, DType::float64)); }, ErrorCode::dtype_mismatch, "y");
}

TEST_CASE("dist is the norm of the difference, of any order") {
  const Tensor x = of({3, 0, 0, 1}, {2, 2}), y = of({0, 0}, {2});
  CHECK(dist_op(x, y).dims() == Dims{});
  CHECK(number(dist_op(x, y)) == std::sqrt(10.0));
  CHECK(number(dist_op(x, y, 0)) == 2);
  CHECK(number(dist_op(x, y, 1)) == 4);
  CHECK(number(dist_op(x, y, HUGE_VALF)) == 3);
  CHECK(number(dist_op(x, y, -HUGE_VALF)) == 0);
  const Tensor same = of({1, 2}, {2}).set_requires_grad(true);
  dist_op(same, of({1, 2}, {2})).backward();
  CHECK(same.grad().to_vector<double>() == Values{0, 0});
  check_refused([&] { dist_op(x, zeros({3}, DType::float64)); }, ErrorCode::shape_mismatch, "[dist] x is");
  check_refused([&] { dist_op(x, zeros({2})); }, ErrorCode::dtype_mismatch, "one float dtype");
}

}  // namespace shard::test::linalg_lu_test
