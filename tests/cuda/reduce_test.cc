// Reductions in all of their shapes, sum's bits, and softmax of masked elements, on the device.
#include <functional>

#include "cuda_case.h"
#include "shard/shard.h"

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

/// Whole and odd rows and columns, few and many, of tensors that fill packs and that do not.
struct Axes {
  Dims x;
  IntArray axes;
};
const std::vector<Axes> kShapes = {
    {{100000}, {}},        {{100003}, {0}},   {{17, 1000}, {1}},        {{17, 1003}, {1}},     {{3, 20000}, {-1}},
    {{3, 20001}, {-1}},    {{20000, 3}, {0}}, {{9000, 16}, {0}},        {{9001, 1}, {0}},      {{3, 4200}, {0}},
    {{300, 132}, {0}},     {{70, 131}, {0}},  {{5, 7, 11, 13}, {0, 2}}, {{5, 7, 11, 12}, {1}}, {{4, 300, 8}, {1}},
    {{6, 40, 16}, {0, 2}}, {{0, 3}, {0}},     {{3, 1, 5}, {1}},         {{2, 5, 4096}, {1, 2}}};

}  // namespace

TEST_CASE("reductions of any shape have on a device the values of the CPU, from views too", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  struct Op {
    const char* name;
    std::function<Tensor(const Tensor&, const IntArray&)> run;
    bool of_floats = false, of_none = true;
  };
  std::vector<Op> ops = {
      {"sum", [](const Tensor& x, const IntArray& axes) { return sum(x, axes); }},
      {"max", [](const Tensor& x, const IntArray& axes) { return max(x, axes); }, false, false},
      {"any", [](const Tensor& x, const IntArray& axes) { return any(x, axes); }},
      {"mean", [](const Tensor& x, const IntArray& axes) { return mean(x, axes); }, true},
      {"logsumexp", [](const Tensor& x, const IntArray& axes) { return logsumexp(x, axes, false, false); }, true,
       false},
      {"var", [](const Tensor& x, const IntArray& axes) { return var(x, axes); }, true},
      {"std", [](const Tensor& x, const IntArray& axes) { return std_op(x, axes, false, true); }, true},
      {"norm",
       [](const Tensor& x, const IntArray& axes) {
         return std::get<0>(norm(x, axes.empty() ? -1 : static_cast<int>(axes[0])));
       },
       true},
      {"frobenius_norm", [](const Tensor& x, const IntArray& axes) { return frobenius_norm(x, axes, false, false); },
       true}};
  for (const float order : {0.0f, 1.0f, 2.5f, HUGE_VALF, -HUGE_VALF}) {
    ops.push_back({"p_norm",
                   [order](const Tensor& x, const IntArray& axes) {
                     return p_norm(x, order, axes.empty() ? -1 : static_cast<int>(axes[0]), 0, false, axes.empty());
                   },
                   true, false});
  }
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int32, DType::int64,
                            DType::uint8, DType::boolean}) {
    for (const Axes& r : kShapes) {
      // Views begin one element after a word, so that no pack is one access.
      for (const int64_t before : {0, 1}) {
        const DenseTensor all = random_tensor({before + r.x.numel()}, dtype, 8), moved = copy_to(*device, all);
        const auto view = [&](const DenseTensor& of) {
          return Tensor(DenseTensor(of.storage(), {r.x, dtype}, static_cast<size_t>(before) * size_of(dtype)));
        };
        for (const Op& op : ops) {
          if ((op.of_floats && !is_floating(dtype)) || (r.x.numel() == 0 && !op.of_none)) continue;
          INFO(op.name << " over " << to_string(r.axes) << " of " << to_string(r.x) << " in " << to_string(dtype)
                       << " from " << before);
          require_close(op.run(view(moved), r.axes).get().value, op.run(view(all), r.axes).get().value);
        }
      }
    }
  }
}

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
