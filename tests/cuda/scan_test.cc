// Running values of lines that several blocks or threads share, on the device.
#include "cuda_case.h"

namespace scan_test {

using namespace shard;
using namespace shard::test;

namespace {

using CumSum = Kernel<const Scalar&, bool, bool, bool>;
using CumProd = Kernel<int>;

struct Case {
  Dims dims;
  int axis;
};

/// One block for a line, several for it, a warp for it, and columns with and without parts.
const std::vector<Case> kCases = {{{3, 2500}, 1}, {{40001}, 0}, {{700, 33}, 1}, {{5, 70, 40}, 1}, {{5000, 3}, 0}};

}  // namespace

TEST_CASE("running sums of long lines are those of the CPU, in either direction and without the element itself",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Case& one : kCases) {
    for (const bool exclusive : {false, true}) {
      for (const bool reverse : {false, true}) {
        INFO("axis " << one.axis << ", exclusive " << exclusive << ", reverse " << reverse);
        for (const DType dtype : {DType::float64, DType::int32, DType::bfloat16}) {
          const DenseTensor x = random_tensor(one.dims, dtype, 3);
          CumSum{"cumsum"}.compare(*device, {x}, x.meta(), Scalar(one.axis), false, exclusive, reverse);
        }
        const DenseTensor x = random_tensor(one.dims, DType::float32, 4);
        Kernel<int, bool, bool, bool>{"logcumsumexp"}.compare(*device, {x}, x.meta(), one.axis, false, exclusive,
                                                              reverse);
      }
    }
  }
}

TEST_CASE("running products do not become NaN where a 0 comes before factors whose product is infinite") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({3, 1000}, DType::float64, 3);
  std::fill_n(x.data<double>(), x.numel(), 1e200);
  x.data<double>()[0] = 0;
  CumProd{"cumprod"}.compare(*device, {x}, x.meta(), 1);
}

TEST_CASE("the running maximum is the last of equal ones, and stays NaN", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Case& one : kCases) {
    const DenseTensor x = random_tensor(one.dims, DType::int32, 5);
    for (int64_t i = 0; i < x.numel(); ++i) x.data<int32_t>()[i] = x.data<int32_t>()[i] % 7;
    const DenseTensor floats = random_tensor(one.dims, DType::float32, 5);
    floats.data<float>()[floats.numel() / 3] = floats.data<float>()[floats.numel() / 2] = NAN;
    for (const DenseTensor& values : {x, floats}) {
      const auto run = [&](Device on) {
        const DenseTensor from = copy_to(on, values);
        DenseTensor out = DenseTensor::allocate(on, values.meta());
        DenseTensor indices = DenseTensor::allocate(on, {values.dims(), DType::int64});
        const OpContext ctx{"cummax"};
        kernel_table("cummax")
            .find<void(const OpContext&, const DenseTensor&, int, DenseTensor&, DenseTensor&)>(ctx, on, values.dtype())
            .function(ctx, from, one.axis, out, indices);
        return std::pair(copy_to(kCpu, out), copy_to(kCpu, indices));
      };
      const auto [out, indices] = run(*device);
      const auto [expected, places] = run(kCpu);
      require_close(out, expected);
      require_close(indices, places);
    }
  }
}

}  // namespace scan_test
