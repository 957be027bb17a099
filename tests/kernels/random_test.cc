// Random kernels: any split gives the bits of the whole, and the numbers have the right distribution.
#include "kernels/kernel_testing.h"

namespace shard::testing {
namespace {

using Uniform = void(const OpContext&, const Scalar&, const Scalar&, int, RandomKey, DenseTensor&);
using Gaussian = void(const OpContext&, float, float, int, RandomKey, DenseTensor&);
using Dropout = void(const OpContext&, const DenseTensor&, const DenseTensor&, const Scalar&, bool, const std::string&, int, bool, RandomKey,
                     DenseTensor&, DenseTensor&);
constexpr RandomKey kKey{42, 7};

/// Checks each [2, 3]-piece of a [4, 9] tensor against the whole.
template <class Fill>
void check_pieces(DType dtype, const Fill& fill) {
  const Dims dims{4, 9};
  DenseTensor whole = uninitialized(dims, dtype);
  fill(OpContext{"random"}, whole);
  const std::vector<double> expected = values(whole);
  for (int64_t row : {0, 2}) {
    for (int64_t column : {0, 3, 6}) {
      const Box box[] = {{dims, {row, column}}};
      const LocalCall local{box, box, nullptr, {}};
      DenseTensor piece = uninitialized({2, 3}, dtype);
      fill(OpContext{"random", &local}, piece);
      for (int64_t i = 0; i < 6; ++i) {
        CHECK(values(piece)[static_cast<size_t>(i)] == expected[static_cast<size_t>((row + i / 3) * 9 + column + i % 3)]);
      }
    }
  }
}

TEST_CASE("uniform and gaussian give the same bits for every split") {
  for (const DType dtype : kFloatDTypes) {
    check_pieces(dtype, [&](const OpContext& ctx, DenseTensor& out) { call_in<Uniform>(ctx, "uniform", dtype, Scalar(-1), Scalar(1), 0, kKey, out); });
    check_pieces(dtype, [&](const OpContext& ctx, DenseTensor& out) { call_in<Gaussian>(ctx, "gaussian", dtype, 0.0f, 1.0f, 0, kKey, out); });
    check_pieces(dtype, [&](const OpContext& ctx, DenseTensor& out) {
      DenseTensor mask = uninitialized(out.dims(), DType::uint8);
      const DenseTensor ones = tensor(std::vector<double>(static_cast<size_t>(out.numel()), 1), out.dims(), dtype);
      call_in<Dropout>(ctx, "dropout", dtype, ones, DenseTensor(), Scalar(0.5), false, "upscale_in_train", 0, false, kKey, out, mask);
    });
  }
}

TEST_CASE("random numbers have the distribution that was asked for") {
  DenseTensor out = uninitialized({100001}, DType::float32);
  call<Uniform>("uniform", DType::float32, Scalar(2), Scalar(4), 0, kKey, out);
  double sum = 0, squares = 0;
  for (double value : values(out)) {
    REQUIRE(value >= 2);
    REQUIRE(value < 4);
    sum += value;
  }
  CHECK(sum / 100001 == Approx(3).epsilon(0.01));
  call<Gaussian>("gaussian", DType::float32, 1.0f, 2.0f, 0, kKey, out);
  sum = 0;
  for (double value : values(out)) {
    sum += value;
    squares += (value - 1) * (value - 1);
  }
  CHECK(sum / 100001 == Approx(1).epsilon(0.03));
  CHECK(squares / 100001 == Approx(4).epsilon(0.03));
}

TEST_CASE("a seed gives the same numbers whatever key is drawn") {
  DenseTensor a = uninitialized({8}, DType::float32), b = uninitialized({8}, DType::float32);
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 5, RandomKey{1, 1}, a);
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 5, RandomKey{2, 9}, b);
  CHECK(values(a) == values(b));
  call<Uniform>("uniform", DType::float32, Scalar(0), Scalar(1), 0, RandomKey{2, 9}, b);
  CHECK(values(a) != values(b));
}

TEST_CASE("dropout keeps 1 - p of the elements and scales by mode") {
  const DenseTensor x = tensor(std::vector<double>(20000, 1), {20000}), absent;
  DenseTensor out = uninitialized({20000}, DType::float32), mask = uninitialized({20000}, DType::uint8);
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(0.75), false, "upscale_in_train", 0, false, kKey, out, mask);
  double kept = 0;
  for (size_t i = 0; i < 20000; ++i) {
    kept += mask.data<uint8_t>()[i];
    REQUIRE(out.data<float>()[i] == (mask.data<uint8_t>()[i] ? 4.0f : 0.0f));
  }
  CHECK(kept / 20000 == Approx(0.25).epsilon(0.1));
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(0.75), true, "downscale_in_infer", 0, false, kKey, out, mask);
  CHECK(out.data<float>()[7] == 0.25f);
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(1.0), false, "upscale_in_train", 0, false, kKey, out, mask);
  CHECK(values(out) == std::vector<double>(20000, 0));
  call<Dropout>("dropout", DType::float32, x, absent, Scalar(0), false, "upscale_in_train", 0, false, kKey, out, mask);
  CHECK(values(out) == std::vector<double>(20000, 1));
}

}  // namespace
}  // namespace shard::testing
