// sum and softmax on the device against the CPU.
#include "cuda_case.h"

using namespace shard;
using namespace shard::test;

namespace {

struct Reduction {
  Dims x;
  IntArray axes;
  Dims out;
};

const std::vector<Reduction> kReductions = {
    {{}, {}, {}},
    {{1000}, {}, {}},
    {{100000}, {0}, {}},
    {{17, 1000}, {}, {}},
    {{17, 1000}, {1}, {17}},
    {{3, 20000}, {-1}, {3}},
    {{17, 1000}, {0}, {1000}},
    {{20000, 3}, {0}, {3}},
    {{5, 7, 11}, {1}, {5, 11}},
    {{5, 7, 11}, {0, 2}, {7}},
    {{5, 7, 11, 13}, {0, 2}, {7, 13}},
    {{5, 1, 11}, {1}, {5, 11}},
    {{4, 0, 3}, {1}, {4, 3}},
    {{0, 3}, {1}, {0}},
};

DType sum_type(DType dtype) { return is_floating(dtype) ? dtype : DType::int64; }

using Sum = Kernel<const IntArray&, bool>;

}  // namespace

TEST_CASE("sum on the device equals the CPU for any axes") {
  const auto device = cuda_device();
  if (!device) return;
  for (DType dtype : kAll) {
    for (const Reduction& r : kReductions) {
      if (size_of(dtype) == 2 && r.x.numel() > 20000) continue;  // beyond what 16-bit sums compare to
      Sum{"sum"}.compare(*device, {random_tensor(r.x, dtype, 6)}, {r.out, sum_type(dtype)}, r.axes, false);
    }
  }
}

TEST_CASE("sum keeps reduced dims as 1 when asked") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({5, 7, 11}, DType::float32, 7);
  Sum{"sum"}.compare(*device, {x}, {{5, 1, 11}, DType::float32}, IntArray{1}, true);
}

TEST_CASE("sum gives the same bits every time") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Reduction& r : kReductions) {
    const DenseTensor x = on(*device, random_tensor(r.x, DType::float32, 8));
    const Meta meta{r.out, DType::float32};
    const DenseTensor first = on(kCpu, Sum{"sum"}.run(*device, {x}, meta, r.axes, false));
    for (int repeat = 0; repeat < 5; ++repeat) {
      const DenseTensor again = on(kCpu, Sum{"sum"}.run(*device, {x}, meta, r.axes, false));
      REQUIRE(std::equal(first.data<float>(), first.data<float>() + first.numel(), again.data<float>()));
    }
  }
}

TEST_CASE("softmax on the device equals the CPU along any axis") {
  const auto device = cuda_device();
  if (!device) return;
  const std::vector<std::pair<Dims, int>> cases = {{{5}, 0},          {{7, 31}, -1},     {{3, 2000}, 1}, {{130, 9}, 0},
                                                   {{4, 5, 6, 7}, 1}, {{4, 5, 6, 7}, -2}, {{2, 0, 3}, 1}, {{3, 1}, 1}};
  for (DType dtype : kFloats) {
    for (const auto& [dims, axis] : cases) {
      Kernel<int>{"softmax"}.compare(*device, {random_tensor(dims, dtype, 9)}, {dims, dtype}, axis);
    }
  }
}

TEST_CASE("softmax ignores masked elements and stays NaN where all are masked") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({3, 40}, DType::float32, 10);
  for (int i = 0; i < 20; ++i) x.data<float>()[i] = -INFINITY;
  for (int i = 40; i < 80; ++i) x.data<float>()[i] = -INFINITY;
  Kernel<int>{"softmax"}.compare(*device, {x}, x.meta(), 1);
  Kernel<int>{"softmax"}.compare(*device, {x}, x.meta(), 0);
}
