// Factors of matrices: values of NumPy, products that give the argument back, empty matrices, shards, and errors.
#include <cmath>

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test::linalg_factor_test {
namespace {

using Values = std::vector<double>;

Tensor of(const Values& numbers, const Dims& dims) { return Tensor::from_data(numbers, dims); }

/// Equal up to an absolute tolerance.
bool is_close(const Tensor& got, const Tensor& expected, double tolerance = 1e-13) {
  if (!(got.dims() == expected.dims()) || got.dtype() != expected.dtype()) return false;
  const Values a = cast(got, DType::float64).to_vector<double>(),
               b = cast(expected, DType::float64).to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= tolerance)) return false;
  }
  return true;
}

Tensor identity(int64_t n) { return eye(n, n, DType::float64); }

const Tensor& tall() {
  static const Tensor x = of({4, 3, 2, 1, 7, 5, 2, 2, 9, 1, 0, 1}, {4, 3});
  return x;
}

}  // namespace

TEST_CASE("qr has the signs of LAPACK and agrees with NumPy in every mode") {
  const Tensor r_of_tall = of({-4.690415759823429, -4.903616476179039, -6.822422923379532, 0, -6.1607260493017755,
                               -4.146500646356405, 0, 0, -6.8746692898139745},
                              {3, 3});
  const auto [q, r] = qr(tall());
  CHECK(q.dims() == Dims{4, 3});
  CHECK(is_close(r, r_of_tall));
  CHECK(is_close(matmul(q, r), tall()));
  CHECK(is_close(matmul(q, q, true), identity(3)));
  const auto [whole_q, whole_r] = qr(tall(), "complete");
  CHECK(is_close(whole_r, concat({r_of_tall, zeros({1, 3}, DType::float64)}, 0)));
  CHECK(is_close(matmul(whole_q, whole_q, true), identity(4)));
  CHECK(is_close(matmul(whole_q, whole_r), tall()));
  const auto [no_q, only_r] = qr(tall(), "r");
  CHECK(no_q.dims() == Dims{4, 0});
  CHECK(is_close(only_r, r_of_tall));
  const Tensor wide = transpose(tall(), {1, 0});
  const auto [wide_q, wide_r] = qr(stack({wide, wide}, 0));
  CHECK(wide_q.dims() == Dims{2, 3, 3});
  CHECK(is_close(matmul(wide_q, wide_r)[1], wide));
  CHECK(is_close(std::get<1>(qr(cast(tall(), DType::float32))), cast(r_of_tall, DType::float32), 1e-5));
}

TEST_CASE("qr of empty matrices") {
  const auto [q, r] = qr(zeros({2, 0, 3}));
  CHECK(q.dims() == Dims{2, 0, 0});
  CHECK(r.dims() == Dims{2, 0, 3});
  CHECK(is_close(std::get<0>(qr(zeros({2, 0}, DType::float64), "complete")), identity(2)));
}

TEST_CASE("qr refuses other modes and dtypes and the gradients that it lacks") {
  check_contains(error_of([] { qr(tall(), "full"); }, ErrorCode::invalid_argument), "mode is 'full'");
  error_of([] { qr(zeros({3})); }, ErrorCode::shape_mismatch);
  error_of([] { qr(zeros({2, 2}, DType::int32)); }, ErrorCode::dtype_mismatch);
  const auto refuses = [](const Tensor& value, const char* mode) {
    const Tensor x = value.detach().set_requires_grad(true);
    check_contains(error_of([&] { sum(std::get<1>(qr(x, mode))).backward(); }, ErrorCode::invalid_argument),
                   "there are gradients only of 'reduced'");
  };
  refuses(tall(), "r");
  refuses(tall(), "complete");
  refuses(transpose(tall(), {1, 0}), "reduced");
}

TEST_CASE("qr of a batch in shards is that of the whole in the modes without a gradient") {
  const Tensor x = stack({tall(), scale(tall(), 2), scale(tall(), -1)}, 0);
  for (const std::string mode : {"complete", "r"}) {
    const auto [q, r] = qr(x, mode);
    const Values q_values = q.to_vector<double>(), r_values = r.to_vector<double>();
    run_ranks(2, [&](Rank&) {
      const ProcessMesh* mesh = ProcessMesh::make({2}, {}, {"a"});
      for (const char* layout : {"a, -, -", "-, a, -"}) {
        const auto [dist_q, dist_r] = qr(distribute(x, DistSpec::parse(mesh, layout)), mode);
        check(full_equals(dist_q, q_values) && full_equals(dist_r, r_values), mode + " of " + layout);
      }
    });
  }
}

}  // namespace shard::test::linalg_factor_test
