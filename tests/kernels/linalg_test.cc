// Products, decompositions and solutions of equations: values of NumPy and SciPy, products that give the argument back,
// batches, empty matrices, and errors.
#include <limits>

#include "kernels/kernel_testing.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::testing::linalg_test {
namespace {

using Values = std::vector<double>;
using test::error_of;

Tensor of(const Values& numbers, const Dims& dims, DType dtype = DType::float64) {
  return Tensor(tensor(numbers, dims, dtype));
}

/// Equal up to `tolerance`, an absolute one: what is computed from matrices has no relative one.
void check(const Tensor& got, const Dims& dims, const Values& expected, double tolerance = 1e-13) {
  CHECK(got.dims() == dims);
  const Values actual = values(got.get().value);
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("element " << i << ": " << actual[i] << ", expected " << expected[i]);
    REQUIRE((actual[i] == expected[i] || std::abs(actual[i] - expected[i]) <= tolerance));
  }
}

void check_equal(const Tensor& got, const Tensor& expected, double tolerance = 1e-13) {
  check(got, expected.dims(), values(expected.get().value), tolerance);
}

const Tensor& positive() {  // positive definite
  static const Tensor a = of({4, 2, -1, 2, 5, 3, -1, 3, 6}, {3, 3});
  return a;
}
const Tensor& general() {  // needs swapped rows
  static const Tensor a = of({0, 2, 1, 1, 1, 0, 3, 0, 1}, {3, 3});
  return a;
}
const Tensor& singular() {
  static const Tensor a = of({1, 2, 2, 4}, {2, 2});
  return a;
}

/// Two matrices in a batch.
Tensor both(const Tensor& a, const Tensor& b) { return stack({a, b}, 0); }

Tensor identity(int64_t n) { return eye(n, n, DType::float64); }

}  // namespace

TEST_CASE("products of matrices and vectors") {
  const Tensor a = of({1, 2, 3, 4}, {2, 2}), v = of({10, 20}, {2});
  check(bmm(both(a, a), both(a, identity(2))), {2, 2, 2}, {7, 10, 15, 22, 1, 2, 3, 4});
  check(mv(a, v), {2}, {50, 110});
  check(dot(v, v), {}, {500});
  check(dot(a, a), {2}, {5, 25});
  CHECK(dot(of({1}, {1}, DType::int32), of({2}, {1}, DType::int32)).dtype() == DType::int32);
  check(addmm(v, a, a, 0.5f, 2), {2, 2}, {19, 30, 35, 54});
  check(addmm(of({1}, {1, 1}), a, a), {2, 2}, {8, 11, 16, 23});
  check(kron(a, v), {2, 4}, {10, 20, 20, 40, 30, 60, 40, 80});
  check(kron(of({3}, {}), v), {2}, {30, 60});
  check(cross(of({1, 2, 3}, {3}), of({4, 5, -6}, {3})), {3}, {-27, 18, -3});
  check(cross(of({1, 2, 3}, {1, 3}), of({4, 5, -6}, {1, 3}), -1), {1, 3}, {-27, 18, -3});
  error_of([&] { bmm(a, a); }, ErrorCode::shape_mismatch);
  error_of([&] { bmm(both(a, a), of({1, 2, 3, 4}, {1, 2, 2})); }, ErrorCode::shape_mismatch);
  error_of([&] { mv(v, v); }, ErrorCode::shape_mismatch);
  error_of([&] { dot(a, v); }, ErrorCode::shape_mismatch);
  error_of([&] { addmm(of({1, 2, 3}, {3}), a, a); }, ErrorCode::shape_mismatch);
  error_of([&] { cross(v, v); }, ErrorCode::shape_mismatch);
  error_of([&] { kron(zeros({1, 1, 1, 1, 1}), v); }, ErrorCode::invalid_argument);
}

TEST_CASE("multi_dot multiplies in any order, with vectors at the ends") {
  const Tensor a = of({1, 2, 3, 4}, {2, 2}), row = of({1, 1}, {2}), column = of({1, -1}, {2});
  check(multi_dot({a, a}), {2, 2}, {7, 10, 15, 22});
  check(multi_dot({row, a, a, column}), {}, {-10});
  check(multi_dot({row, a, a}), {2}, {22, 32});
  check(multi_dot({of({1, 2, 3}, {3, 1}), of({1, 2, 3}, {1, 3}), of({1, 0, 1}, {3, 1})}), {3, 1}, {4, 8, 12});
  error_of([&] { multi_dot({a}); }, ErrorCode::invalid_argument);
  error_of([&] { multi_dot({a, of({1, 2, 3}, {3, 1})}); }, ErrorCode::shape_mismatch);
}

TEST_CASE("cholesky reads one triangle and agrees with NumPy") {
  const Values lower = {2, 0, 0, 1, 2, 0, -0.5, 1.75, 1.6393596310755};
  check(cholesky(positive()), {3, 3}, lower);
  const Tensor garbage = of({4, 9, 9, 2, 5, 9, -1, 3, 6}, {3, 3});
  check(cholesky(both(garbage, identity(3))), {2, 3, 3},
        {2, 0, 0, 1, 2, 0, -0.5, 1.75, 1.6393596310755, 1, 0, 0, 0, 1, 0, 0, 0, 1});
  check_equal(cholesky(transpose(garbage, {1, 0}), true), transpose(of(lower, {3, 3}), {1, 0}));
  check(cholesky(cast(positive(), DType::float32)), {3, 3}, lower, 1e-6);
  const std::string error = error_of([] { cholesky(both(identity(2), singular())); }, ErrorCode::invalid_argument);
  CHECK_THAT(error, Catch::Contains("not positive definite") && Catch::Contains("the matrix is at [1]"));
  error_of([] { cholesky(of({1, 2}, {1, 2})); }, ErrorCode::shape_mismatch);
  error_of([] { cholesky(of({1}, {1, 1}, DType::float16)); }, ErrorCode::dtype_mismatch);
}

TEST_CASE("triangular_solve solves with each triangle, transposed too, and with batches that broadcast") {
  const Tensor a = of({2, 5, 3, 4}, {2, 2}), y = of({1, 2, 3, 4}, {2, 2});
  for (const bool upper : {false, true}) {
    const Tensor triangle = upper ? triu(a, 0) : tril(a, 0);
    check_equal(matmul(triangle, triangular_solve(a, y, upper)), y);
    check_equal(matmul(triangle, triangular_solve(a, y, upper, true), true), y);
  }
  check(triangular_solve(a, y, false, false, true), {2, 2}, {1, 2, 0, -2});
  const Tensor batch = triangular_solve(both(a, identity(2)), y);
  CHECK(batch.dims() == Dims{2, 2, 2});
  check_equal(batch[0], triangular_solve(a, y));
  check_equal(batch[1], y);
  check_equal(triangular_solve(identity(2), both(y, a)), both(y, a));
  CHECK_THAT(error_of(
                 [&] {
                   triangular_solve(of({1, 1, 0, 0}, {2, 2}), y);
                 },
                 ErrorCode::invalid_argument),
             Catch::Contains("singular"));
  error_of([&] { triangular_solve(a, of({1, 2, 3}, {3, 1})); }, ErrorCode::shape_mismatch);
}

TEST_CASE("solve, inverse and cholesky_solve agree with NumPy and SciPy") {
  const Tensor y = of({1, 2, 3, 4, 5, 6}, {3, 2});
  check(solve(general(), y), {3, 2}, {2, 2.4, 1, 1.6, -1, -1.2});
  check(solve(general(), of({1, 3, 5}, {3})), {3}, {2, 1, -1});
  check(solve(both(general(), identity(3)), of({1, 3, 5}, {3})), {2, 3}, {2, 1, -1, 1, 3, 5});
  check_equal(solve(both(general(), identity(3)), y)[1], y);
  check(solve(cast(general(), DType::float32), cast(y, DType::float32)), {3, 2}, {2, 2.4, 1, 1.6, -1, -1.2}, 1e-5);
  check(inverse(positive()), {3, 3},
        {0.4883720930232558, -0.34883720930232565, 0.2558139534883721, -0.3488372093023256, 0.5348837209302326,
         -0.32558139534883723, 0.2558139534883721, -0.32558139534883723, 0.37209302325581395});
  check_equal(matmul(inverse(both(general(), positive())), both(general(), positive())),
              both(identity(3), identity(3)));
  const Values expected = {0.7209302325581396,  1.1162790697674418, -0.37209302325581395,
                           -0.5116279069767442, 1.1395348837209303, 1.441860465116279};
  check(cholesky_solve(y, cholesky(positive())), {3, 2}, expected);
  check(cholesky_solve(y, cholesky(positive(), true), true), {3, 2}, expected);
  CHECK_THAT(error_of([] { inverse(both(identity(2), singular())); }, ErrorCode::invalid_argument),
             Catch::Contains("singular") && Catch::Contains("the matrix is at [1]"));
  error_of([] { solve(singular(), identity(2)); }, ErrorCode::invalid_argument);
  error_of([] { inverse(of({1, 2, 3}, {3})); }, ErrorCode::shape_mismatch);
}

TEST_CASE("a determinant does not overflow before it is complete") {
  const Values sizes = {1e200, 1e200, 1e-200, 1e-200};
  for (const bool falling : {true, false}) {
    Values matrix(16, 0);
    for (size_t i = 0; i < 4; ++i) matrix[5 * i] = sizes[falling ? i : 3 - i];
    check(det(of(matrix, {4, 4})), {}, {1}, 1e-12);
  }
}

TEST_CASE("determinants, their signs and logarithms") {
  check(det(both(positive(), general())), {2}, {43, -5});
  check(det(singular()), {}, {0});
  check(slogdet(both(positive(), general())), {2, 2}, {1, -1, 3.7612001156935624, 1.6094379124341003});
  check(slogdet(singular()), {2}, {0, -std::numeric_limits<double>::infinity()});
  check(det(zeros({2, 0, 0}, DType::float64)), {2}, {1, 1});
  const Tensor x = assign(singular()).set_requires_grad(true);
  error_of([&] { det(x).backward(); }, ErrorCode::invalid_argument);
}

TEST_CASE("eigh returns eigenvalues in rising order with their vectors as columns") {
  const auto [w, v] = eigh(positive(), "L");
  check(w, {3}, {0.9119319636987058, 5.473755444798529, 8.614312591502763});
  check(multiply(v, v), {3, 3},
        {0.3358397591783962, 0.6456010324437036, 0.018559208377900326, 0.418713658034385, 0.12393362230972409,
         0.4573527196558913, 0.24544658278721948, 0.23046534524657236, 0.5240880719662083});
  check_equal(matmul(positive(), v), multiply(v, w));
  const Tensor garbage = of({4, 9, 9, 2, 5, 9, -1, 3, 6}, {3, 3});
  check_equal(std::get<0>(eigh(both(garbage, identity(3)), "L"))[0], w);
  check_equal(std::get<0>(eigh(transpose(garbage, {1, 0}), "U")), w);
  check_equal(std::get<0>(eigvalsh(positive())), w);
  CHECK(std::get<1>(eigh(zeros({2, 0, 0}, DType::float64), "L")).dims() == Dims{2, 0, 0});
  error_of([] { eigh(positive(), "X"); }, ErrorCode::invalid_argument);
  error_of([] { eigh(of({std::nan("")}, {1, 1}), "L"); }, ErrorCode::invalid_argument);
}

TEST_CASE("svd gives the matrix back and agrees with NumPy") {
  const Tensor x = of({1, 2, 3, 4, 5, 6}, {3, 2});
  const auto [u, s, vh] = svd(x);
  check(s, {2}, {9.525518091565107, 0.5143005806586443});
  check(multiply(u, u), {3, 2},
        {0.052829963540419425, 0.7805033697929143, 0.27535712481577346, 0.057976208517559746, 0.6718129116438073,
         0.1615204216895261});
  check(multiply(vh, vh), {2, 2}, {0.38394069723061475, 0.6160593027693851, 0.6160593027693851, 0.38394069723061475});
  check_equal(matmul(multiply(u, s), vh), x);
  const auto [wide_u, wide_s, wide_vh] = svd(both(transpose(x, {1, 0}), zeros({2, 3}, DType::float64)));
  check_equal(matmul(multiply(wide_u, unsqueeze(wide_s, {1})), wide_vh)[0], transpose(x, {1, 0}));
  CHECK(wide_vh.dims() == Dims{2, 2, 3});
  const auto [full_u, full_s, full_vh] = svd(x, true);
  check_equal(matmul(full_u, full_u, true), identity(3));
  check_equal(full_s, s);
  check_equal(matmul(full_vh, full_vh, false, true), identity(2));
  check_equal(std::get<2>(svd(zeros({0, 2}, DType::float64), true)), identity(2));
}

TEST_CASE("powers and ranks of matrices") {
  check(matrix_power(general(), 3), {3, 3}, {5, 12, 6, 6, 5, 2, 18, 12, 7});
  check(matrix_power(general(), -2), {3, 3}, {0.24, -0.08, -0.04, -0.04, 0.68, -0.16, -0.12, -0.96, 0.52});
  check_equal(matrix_power(both(general(), positive()), 0), both(identity(3), identity(3)));
  Tensor copy = matrix_power(general(), 1);
  add_(copy, identity(3));
  CHECK(general().to_vector<double>()[0] == 0);
  check(matrix_rank(both(identity(2), singular()), 0), {2}, {2, 1});
  check(matrix_rank(both(identity(2), singular()), 0, true, true), {2}, {2, 1});
  check(matrix_rank(of({3, 0, 0, 1}, {2, 2}), 2, false), {}, {1});
  check(matrix_rank(zeros({2, 0, 3}, DType::float64), 0), {2}, {0, 0});
  CHECK(matrix_rank(identity(2), 0).dtype() == DType::int64);
  error_of([] { matrix_power(of({1, 2}, {1, 2}), 2); }, ErrorCode::shape_mismatch);
}

}  // namespace shard::testing::linalg_test
