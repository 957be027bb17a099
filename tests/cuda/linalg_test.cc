// Decompositions on the device of larger matrices and of batches that broadcast, and their errors, against the CPU.
#include <cmath>

#include "cuda_case.h"

namespace linalg_test {

using namespace shard;
using namespace shard::test;

namespace {

/// Matrices that have an inverse: random ones, with `diagonal` added to their diagonals.
template <class T>
void add_diagonal(const DenseTensor& x, T diagonal) {
  const Dims& dims = x.dims();
  const int64_t n = dims[dims.rank() - 1], size = dims[dims.rank() - 2] * n;
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (i % size % (n + 1) == 0) x.data<T>()[i] += diagonal;
  }
}

DenseTensor regular(const Dims& dims, DType dtype, double diagonal) {
  DenseTensor x = random_tensor(dims, dtype, 7);
  if (dtype == DType::float32) add_diagonal(x, static_cast<float>(diagonal));
  else add_diagonal(x, diagonal);
  return x;
}

/// Matrices x x' of such.
DenseTensor positive(int64_t count, int64_t n, DType dtype) {
  const DenseTensor x = regular({count, n, n}, dtype, 40);
  return Kernel<bool, bool>{"matmul"}.run(kCpu, {x, x}, {{count, n, n}, dtype}, false, true);
}

template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "none";
}

constexpr DType kDTypes[] = {DType::float32, DType::float64};

}  // namespace

TEST_CASE("decompositions of larger matrices on the device are the CPU's") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : kDTypes) {
    const int64_t n = 70;
    const DenseTensor x = regular({2, n, n}, dtype, 40);
    const Meta same{{2, n, n}, dtype};
    for (const bool upper : {false, true})
      Kernel<bool>{"cholesky"}.compare(*device, {positive(2, n, dtype)}, same, upper);
    Kernel<>{"inverse"}.compare(*device, {x}, same);
    Kernel<>{"slogdet"}.compare(*device, {x}, {{2, 2}, dtype});
    Kernel<>{"determinant"}.compare(*device, {regular({3, 5, 5}, dtype, 2)}, {{3}, dtype});
    Kernel<>{"solve"}.compare(*device, {x, random_tensor({3, 1, n, 33}, dtype, 8)}, {{3, 2, n, 33}, dtype});
    Kernel<>{"solve"}.compare(*device, {x, random_tensor({n}, dtype, 8)}, {{2, n}, dtype});
    for (const bool upper : {false, true}) {
      for (const bool transpose : {false, true}) {
        for (const bool unit : {false, true}) {
          const DenseTensor factor = unit ? random_tensor({2, 1, 6, 6}, dtype, 9) : regular({2, 1, 6, 6}, dtype, 9);
          Kernel<bool, bool, bool>{"triangular_solve"}.compare(*device, {factor, random_tensor({3, 6, 5}, dtype, 8)},
                                                               {{2, 3, 6, 5}, dtype}, upper, transpose, unit);
        }
      }
    }
  }
}

TEST_CASE("matrices without a decomposition are the CPU's errors on the device, at the next copy to the host") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = positive(3, 4, DType::float32);
  std::fill_n(x.data<float>() + 16, 16, 0.0f);  // the second
  const auto compare = [&](const auto& run) {
    const std::string expected = error_of([&] { run(kCpu); });
    REQUIRE(expected.find("the matrix is at [1]") != std::string::npos);
    CHECK(error_of([&] { copy_to(kCpu, run(*device)); }) == expected);
  };
  const Meta same = x.meta();
  compare([&](Device on) { return Kernel<bool>{"cholesky"}.run(on, {copy_to(on, x)}, same, false); });
  compare([&](Device on) { return Kernel<>{"inverse"}.run(on, {copy_to(on, x)}, same); });
  compare([&](Device on) { return Kernel<>{"solve"}.run(on, {copy_to(on, x), copy_to(on, x)}, same); });
  compare([&](Device on) {
    return Kernel<bool, bool, bool>{"triangular_solve"}.run(on, {copy_to(on, x), copy_to(on, x)}, same, true, false,
                                                            false);
  });
}

TEST_CASE("eigenvalues and singular values of what is not finite are the CPU's errors on the device") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = positive(3, 4, DType::float64);
  x.data<double>()[2 * 16 + 5] = INFINITY;
  using In = const DenseTensor&;
  using Out = DenseTensor&;
  const auto eigh = [&](Device on) {
    const OpContext ctx{"eigh"};
    DenseTensor w = DenseTensor::allocate(on, {{3, 4}, DType::float64}), v = DenseTensor::allocate(on, x.meta());
    kernel_table("eigh")
        .find<void(const OpContext&, In, const std::string&, Out, Out)>(ctx, on, DType::float64)
        .function(ctx, copy_to(on, x), "L", w, v);
    copy_to(kCpu, w);
  };
  const auto svd = [&](Device on) {
    const OpContext ctx{"svd"};
    DenseTensor u = DenseTensor::allocate(on, x.meta()), s = DenseTensor::allocate(on, {{3, 4}, DType::float64}),
                vh = DenseTensor::allocate(on, x.meta());
    kernel_table("svd")
        .find<void(const OpContext&, In, bool, Out, Out, Out)>(ctx, on, DType::float64)
        .function(ctx, copy_to(on, x), false, u, s, vh);
    copy_to(kCpu, s);
  };
  const std::string of_eigh = error_of([&] { eigh(kCpu); }), of_svd = error_of([&] { svd(kCpu); });
  REQUIRE(of_eigh.find("the matrix is at [2]") != std::string::npos);
  REQUIRE(of_svd.find("the matrix is at [2]") != std::string::npos);
  CHECK(error_of([&] { eigh(*device); }) == of_eigh);
  CHECK(error_of([&] { svd(*device); }) == of_svd);
}

}  // namespace linalg_test
