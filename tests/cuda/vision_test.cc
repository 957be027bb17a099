// grid_sample, roi_align and roi_pool on the device: many places at one element, more keys than a block sorts, many channels, and boxes that
// are wrong.
#include <limits>

#include "image_case.h"

namespace vision_test {

using namespace shard;
using namespace shard::test;

namespace {

DenseTensor numbers(const std::vector<int32_t>& values) {
  const DenseTensor tensor = DenseTensor::allocate(kCpu, {{static_cast<int64_t>(values.size())}, DType::int32});
  std::copy(values.begin(), values.end(), tensor.data<int32_t>());
  return tensor;
}

/// Boxes [count, 4] with corners from -2 to 9.
DenseTensor boxes(int64_t count) {
  const DenseTensor random = random_tensor({count, 4}, DType::float32, 7);
  for (int64_t i = 0; i < random.numel(); ++i) {
    float& value = random.data<float>()[i];
    value = i % 4 < 2 ? 2 * value + 1 : 2 * value + 6;
  }
  return random;
}

Tensors roi_ops(const Tensors& t, int ratio, bool aligned) {
  const auto [out, arg_max] = roi_pool_intermediate(t[0], t[1], t[2], 3, 2, 0.5f);
  return {roi_align(t[0], t[1], t[2], 3, 2, 0.5f, ratio, aligned),
          roi_align_grad(t[0], t[1], t[2], t[3], 3, 2, 0.5f, ratio, aligned), out, arg_max};
}

}  // namespace

TEST_CASE("grid_sample and its gradients are those of the host, where many places read one element") {
  const auto device = cuda_device();
  if (!device) return;
  struct Shape {
    Dims x, grid;
  };
  // The first has more corners than a block of the sort has keys, most of them at the borders.
  const std::vector<Shape> shapes = {{{2, 19, 5, 4}, {2, 20, 31, 2}}, {{1, 9, 3, 4, 2}, {1, 4, 5, 6, 3}}};
  for (const Shape& shape : shapes) {
    const DenseTensor x = random_tensor(shape.x, DType::float32, 1),
                      grid = random_tensor(shape.grid, DType::float32, 2);
    Dims dims = shape.grid;
    for (int d = dims.rank() - 1; d > 1; --d) dims[d] = dims[d - 1];
    dims[1] = shape.x[1];
    const DenseTensor grad = random_tensor(dims, DType::float32, 3);
    for (const char* mode : {"bilinear", "nearest"}) {
      for (const char* padding : {"zeros", "border", "reflection"}) {
        INFO(to_string(shape.x) << " " << mode << " " << padding);
        compare_op(*device, {x, grid, grad}, [&](const Tensors& t) {
          Tensors all = all_of(grid_sample_grad(t[0], t[1], t[2], mode, padding, false));
          all.push_back(grid_sample(t[0], t[1], mode, padding, false));
          return all;
        });
      }
    }
  }
}

TEST_CASE("the gradient of grid_sample has more channels than a grid has blocks for") {
  const auto device = cuda_device();
  if (!device) return;
  const int64_t channels = 8 * 65535 + 9;
  const DenseTensor x = random_tensor({1, channels, 1, 1}, DType::float32, 1),
                    grid = random_tensor({1, 1, 1, 2}, DType::float32, 2),
                    grad = random_tensor({1, channels, 1, 1}, DType::float32, 3);
  compare_op(*device, {x, grid, grad}, [](const Tensors& t) {
    return Tensors{std::get<0>(grid_sample_grad(t[0], t[1], t[2], "bilinear", "border", false))};
  });
}

TEST_CASE("parts of boxes of several images are those of the host") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({4, 5, 6, 7}, DType::float32, 1), counts = numbers({9, 0, 21, 10}),
                    grad = random_tensor({40, 5, 3, 2}, DType::float32, 2);
  for (const int ratio : {2, -1}) {
    for (const bool aligned : {false, true}) {
      INFO(ratio << " " << aligned);
      compare_op(*device, {x, boxes(40), counts, grad}, [&](const Tensors& t) { return roi_ops(t, ratio, aligned); });
    }
  }
}

TEST_CASE("wrong boxes are the errors of the CPU, at the next copy to the host") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor x = random_tensor({3, 2, 6, 7}, DType::float32, 1),
                    grad = random_tensor({5, 2, 3, 2}, DType::float32, 2);
  struct Wrong {
    std::vector<int32_t> counts;
    float corner;  // of the third box
  };
  const std::vector<Wrong> all = {{{1, 1, 3}, 2e15f},
                                  {{1, 1, 3}, std::numeric_limits<float>::quiet_NaN()},
                                  {{1, -1, 5}, 0},
                                  {{1, 1, 4}, 1e20f},
                                  {{1, 1, 1}, 0}};
  for (const Wrong& wrong : all) {
    const DenseTensor corners = boxes(5), counts = numbers(wrong.counts);
    corners.data<float>()[10] = wrong.corner;
    for (int op = 0; op < 3; ++op) {
      const auto text = [&](Device at) -> std::string {
        try {
          results_on(at, {x, corners, counts, grad}, [&](const Tensors& t) -> Tensors {
            if (op == 0) return {roi_align(t[0], t[1], t[2], 3, 2)};
            if (op == 1) return {roi_align_grad(t[0], t[1], t[2], t[3], 3, 2, 1, -1, false)};
            return {roi_pool(t[0], t[1], t[2], 3, 2)};
          });
        } catch (const Error& error) { return error.what(); }
        return "none";
      };
      CHECK(text(kCpu) != "none");
      CHECK(text(*device) == text(kCpu));
    }
  }
}

}  // namespace vision_test
