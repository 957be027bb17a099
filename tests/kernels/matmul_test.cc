// matmul against a plain reference: flags, 1-D arguments, batches, empty sizes, every number dtype.
#include <thread>

#include "kernels/kernel_testing.h"

namespace shard::testing::matmul_test {
namespace {

using Matmul = void(const OpContext&, const DenseTensor&, const DenseTensor&, bool, bool, DenseTensor&);

/// Plain product of [b, m, k] and [b or 1, k, n], given as stored.
std::vector<double> reference(const DenseTensor& x, const DenseTensor& y, int64_t batches, bool y_shared, int64_t m,
                              int64_t n, int64_t k, bool tx, bool ty) {
  const std::vector<double> a = values(x), b = values(y);
  std::vector<double> out(static_cast<size_t>(batches * m * n), 0);
  for (int64_t t = 0; t < batches; ++t) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          const int64_t xi = t * m * k + (tx ? l * m + i : i * k + l);
          const int64_t yi = (y_shared ? 0 : t * k * n) + (ty ? j * k + l : l * n + j);
          sum += a[static_cast<size_t>(xi)] * b[static_cast<size_t>(yi)];
        }
        out[static_cast<size_t>((t * m + i) * n + j)] = sum;
      }
    }
  }
  return out;
}

constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::bfloat16,
                             DType::float16, DType::int32,   DType::int64};

TEST_CASE("matmul agrees with the reference for every dtype and transpose flag") {
  struct Size {
    int64_t m, n, k;
  };
  for (const DType dtype : kDTypes) {
    for (const Size s : {Size{2, 3, 4}, Size{1, 1, 1}, Size{33, 17, 40}, Size{0, 3, 4}, Size{3, 0, 4}, Size{3, 4, 0},
                         Size{300, 40, 400}, Size{70, 520, 120}, Size{40, 100, 1100}, Size{1, 70, 101},
                         Size{1, 1500, 7}, Size{70, 1, 101}, Size{1500, 1, 7}}) {
      for (int flags = 0; flags < 4; ++flags) {
        const bool tx = flags & 1, ty = flags & 2;
        INFO(to_string(dtype) << " " << s.m << " " << s.n << " " << s.k << " flags " << flags);
        const DenseTensor x = arbitrary(tx ? Dims{s.k, s.m} : Dims{s.m, s.k}, dtype, 1);
        const DenseTensor y = arbitrary(ty ? Dims{s.n, s.k} : Dims{s.k, s.n}, dtype, 2);
        DenseTensor out = uninitialized({s.m, s.n}, dtype);
        call<Matmul>("matmul", dtype, x, y, tx, ty, out);
        check_close(out, reference(x, y, 1, false, s.m, s.n, s.k, tx, ty), 2);
      }
    }
  }
}

TEST_CASE("NaN in one row of x and one column of y reaches that row and that column alone") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const int64_t k : {1, 2, 3, 5, 17, 129}) {
      for (int flags = 0; flags < 4; ++flags) {
        const bool tx = flags & 1, ty = flags & 2;
        constexpr int64_t m = 140, n = 140;
        for (const int64_t at : {int64_t{0}, k - 1}) {
          INFO(to_string(dtype) << " " << k << " flags " << flags << " at " << at);
          std::vector<double> x(static_cast<size_t>(m * k), 1), y(static_cast<size_t>(k * n), 1);
          x[static_cast<size_t>(tx ? at * m + 7 : 7 * k + at)] = nan;
          y[static_cast<size_t>(ty ? 9 * k + at : at * n + 9)] = nan;
          DenseTensor out = uninitialized({m, n}, dtype);
          call<Matmul>("matmul", dtype, tensor(x, tx ? Dims{k, m} : Dims{m, k}, dtype),
                       tensor(y, ty ? Dims{n, k} : Dims{k, n}, dtype), tx, ty, out);
          const std::vector<double> all = values(out);
          int64_t wrong = 0;
          for (int64_t i = 0; i < m * n; ++i)
            wrong += std::isnan(all[static_cast<size_t>(i)]) != (i / n == 7 || i % n == 9);
          CHECK(wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("products that follow one another on a thread do not take each other's strides") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const int64_t m : {600, 900, 600}) {
      const DenseTensor x = arbitrary({140, m}, dtype, 1), y = arbitrary({140, 140}, dtype, 2);
      DenseTensor out = uninitialized({m, 140}, dtype);
      call<Matmul>("matmul", dtype, x, y, true, false, out);
      check_close(out, reference(x, y, 1, false, m, 140, 140, true, false), 2);
    }
  }
}

TEST_CASE("long sums of a vector and a matrix keep their accuracy") {
  constexpr int64_t kLength = 1000000;
  const DenseTensor tenths = tensor(std::vector<double>(kLength, 0.1), {kLength});
  const DenseTensor ones = tensor(std::vector<double>(2 * kLength, 1), {kLength, 2});
  DenseTensor dot = uninitialized({}, DType::float32), row = uninitialized({2}, DType::float32);
  call<Matmul>("matmul", DType::float32, tenths, tenths, false, false, dot);
  check_close(dot, {kLength * double{0.1f} * double{0.1f}}, 4);
  call<Matmul>("matmul", DType::float32, tenths, ones, false, false, row);
  check_close(row, {kLength * double{0.1f}, kLength * double{0.1f}}, 16);  // blocks of it are added up in float
}

TEST_CASE("matmul broadcasts leading dims, and one matrix serves all batches") {
  for (const DType dtype : kDTypes) {
    for (const bool tx : {false, true}) {
      for (const bool shared : {false, true}) {
        const DenseTensor x = arbitrary(tx ? Dims{3, 20, 30} : Dims{3, 30, 20}, dtype, 1);
        const DenseTensor y = arbitrary(shared ? Dims{20, 10} : Dims{3, 20, 10}, dtype, 2);
        DenseTensor out = uninitialized({3, 30, 10}, dtype);
        call<Matmul>("matmul", dtype, x, y, tx, false, out);
        check_close(out, reference(x, y, 3, shared, 30, 10, 20, tx, false), 2);
      }
    }
  }
  const DenseTensor x = tensor({1, 2, 3, 4}, {2, 1, 1, 2}), y = tensor({1, 1, 2, 2, 3, 3}, {3, 2, 1});
  DenseTensor out = uninitialized({2, 3, 1, 1}, DType::float32);
  call<Matmul>("matmul", DType::float32, x, y, false, false, out);
  CHECK(values(out) == std::vector<double>{3, 6, 9, 7, 14, 21});
}

TEST_CASE("one-dimensional arguments are a row and a column") {
  DenseTensor dot = uninitialized({}, DType::float32);
  call<Matmul>("matmul", DType::float32, tensor({1, 2}, {2}), tensor({3, 4}, {2}), true, true, dot);
  CHECK(values(dot) == std::vector<double>{11});
  DenseTensor row = uninitialized({3}, DType::float32);
  call<Matmul>("matmul", DType::float32, tensor({1, 2}, {2}), tensor({1, 2, 3, 4, 5, 6}, {2, 3}), false, false, row);
  CHECK(values(row) == std::vector<double>{9, 12, 15});
  DenseTensor column = uninitialized({3}, DType::float32);
  call<Matmul>("matmul", DType::float32, tensor({1, 2, 3, 4, 5, 6}, {3, 2}), tensor({1, 2}, {2}), false, false, column);
  CHECK(values(column) == std::vector<double>{5, 11, 17});
}

TEST_CASE("several threads multiply at once") {
  const DenseTensor x = arbitrary({200, 300}, DType::float32, 1), y = arbitrary({300, 100}, DType::float32, 2);
  const std::vector<double> expected = reference(x, y, 1, false, 200, 100, 300, false, false);
  std::vector<DenseTensor> out(4);
  std::vector<std::thread> ranks;
  for (DenseTensor& result : out) {
    result = uninitialized({200, 100}, DType::float32);
    ranks.emplace_back([&] { call<Matmul>("matmul", DType::float32, x, y, false, false, result); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const DenseTensor& result : out) check_close(result, expected, 2);
}

}  // namespace
}  // namespace shard::testing::matmul_test
