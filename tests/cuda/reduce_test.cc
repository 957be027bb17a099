// sum's bits and softmax of masked elements, on the device.
#include "cuda_case.h"

namespace reduce_test {

using namespace shard;
using namespace shard::test;

namespace {

struct Reduction {
  Dims x;
  IntArray axes;
  Dims out;
};

const std::vector<Reduction> kReductions = {{{1000}, {}, {}},        {{100000}, {0}, {}},
                                            {{17, 1000}, {1}, {17}}, {{3, 20000}, {-1}, {3}},
                                            {{20000, 3}, {0}, {3}},  {{5, 7, 11, 13}, {0, 2}, {7, 13}}};

using Sum = Kernel<const IntArray&, bool>;

}  // namespace

TEST_CASE("sum gives the same bits every time") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Reduction& r : kReductions) {
    const DenseTensor x = copy_to(*device, random_tensor(r.x, DType::float32, 8));
    const Meta meta{r.out, DType::float32};
    const DenseTensor first = copy_to(kCpu, Sum{"sum"}.run(*device, {x}, meta, r.axes, false));
    for (int repeat = 0; repeat < 5; ++repeat) {
      const DenseTensor again = copy_to(kCpu, Sum{"sum"}.run(*device, {x}, meta, r.axes, false));
      REQUIRE(std::equal(first.data<float>(), first.data<float>() + first.numel(), again.data<float>()));
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

}  // namespace reduce_test
