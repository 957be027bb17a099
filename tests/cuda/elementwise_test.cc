// Elementwise kernels and cast with NaN, infinities and values out of range, on the device against the CPU.
#include "cuda_case.h"

namespace elementwise_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("relu on the device keeps NaN as on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5}, DType::float32, 4);
  x.data<float>()[2] = NAN;
  x.data<float>()[3] = -INFINITY;
  Kernel<>{"relu"}.compare(*device, {x}, x.meta());
}

TEST_CASE("cast to integers clamps, and makes NaN 0, on the device as on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<double> values = {NAN, INFINITY, -INFINITY, 1e30,         -1e30, 255.9,
                                      256, -0.9,     -1.5,      2147483647.0, 9.3e18};
  const DenseTensor x = DenseTensor::allocate(kCpu, {{static_cast<int64_t>(values.size())}, DType::float64});
  std::copy(values.begin(), values.end(), x.data<double>());
  for (DType from : {DType::float64, DType::float32}) {
    const DenseTensor narrowed = Kernel<DType>{"cast"}.run(kCpu, {x}, {x.dims(), from}, from);
    for (DType to : {DType::uint8, DType::int32, DType::int64, DType::boolean}) {
      Kernel<DType>{"cast"}.compare(*device, {narrowed}, {x.dims(), to}, to);
    }
  }
}

}  // namespace elementwise_test
