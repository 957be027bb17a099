// Elementwise kernels and cast on the device against the CPU.
#include "cuda_case.h"

using namespace shard;
using namespace shard::test;

namespace {

struct Broadcast {
  Dims x, y, out;
};

const std::vector<Broadcast> kBroadcasts = {
    {{}, {}, {}},
    {{1}, {1}, {1}},
    {{1031}, {1031}, {1031}},
    {{64, 33}, {64, 33}, {64, 33}},
    {{64, 33}, {33}, {64, 33}},
    {{64, 33}, {64, 1}, {64, 33}},
    {{64, 1}, {1, 33}, {64, 33}},
    {{}, {4, 5}, {4, 5}},
    {{2, 1, 4, 1, 3}, {5, 1, 6, 1}, {2, 5, 4, 6, 3}},
    {{3, 0, 2}, {1, 1, 2}, {3, 0, 2}},
};

}  // namespace

TEST_CASE("add and multiply on the device equal the CPU, with and without broadcasting") {
  const auto device = cuda_device();
  if (!device) return;
  for (const char* name : {"add", "multiply"}) {
    for (DType dtype : kNumbers) {
      for (const Broadcast& shape : kBroadcasts) {
        const DenseTensor x = random_tensor(shape.x, dtype, 1);
        const DenseTensor y = random_tensor(shape.y, dtype, 2);
        Kernel<>{name}.compare(*device, {x, y}, {shape.out, dtype});
      }
    }
  }
}

TEST_CASE("relu on the device equals the CPU and keeps NaN") {
  const auto device = cuda_device();
  if (!device) return;
  for (DType dtype : kNumbers) {
    const DenseTensor x = random_tensor({7, 149}, dtype, 4);
    Kernel<>{"relu"}.compare(*device, {x}, x.meta());
  }
  const DenseTensor x = random_tensor({5}, DType::float32, 4);
  x.data<float>()[2] = NAN;
  x.data<float>()[3] = -INFINITY;
  Kernel<>{"relu"}.compare(*device, {x}, x.meta());
}

TEST_CASE("cast on the device equals the CPU for every pair of dtypes") {
  const auto device = cuda_device();
  if (!device) return;
  for (DType from : kAll) {
    for (DType to : kAll) {
      const DenseTensor x = random_tensor({3, 171}, from, 5);
      Kernel<DType>{"cast"}.compare(*device, {x}, {x.dims(), to}, to);
    }
  }
}

TEST_CASE("cast to integers clamps, and makes NaN 0, on the device as on the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<double> values = {NAN, INFINITY, -INFINITY, 1e30, -1e30, 255.9, 256, -0.9, -1.5, 2147483647.0, 9.3e18};
  const DenseTensor x = DenseTensor::allocate(kCpu, {{static_cast<int64_t>(values.size())}, DType::float64});
  std::copy(values.begin(), values.end(), x.data<double>());
  for (DType from : {DType::float64, DType::float32}) {
    const DenseTensor narrowed = Kernel<DType>{"cast"}.run(kCpu, {x}, {x.dims(), from}, from);
    for (DType to : {DType::uint8, DType::int32, DType::int64, DType::boolean}) {
      Kernel<DType>{"cast"}.compare(*device, {narrowed}, {x.dims(), to}, to);
    }
  }
}
