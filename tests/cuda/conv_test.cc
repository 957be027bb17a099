// Convolutions whose shapes take each of the kernels of CUDA: tiles of two sizes, an element for each thread, long sums in chunks.
#include <cstdlib>

#include "image_case.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "with_cudnn.h"

namespace conv_test {

using namespace shard;
using namespace shard::test;

namespace {

struct Case {
  const char* name;
  Dims input, filter;
  IntArray strides, paddings, dilations;
  int groups;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"tiles of 128", {2, 9, 17, 17}, {130, 9, 3, 3}, {1, 1}, {0, 0}, {1, 1}, 1},
      {"a long sum of few elements", {1, 64, 5, 5}, {20, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},
      {"one tap", {3, 40, 5, 6}, {70, 40, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},
      {"groups, dilation and four paddings", {2, 24, 6, 7}, {36, 12, 3, 2}, {2, 1}, {1, 2, 0, 1}, {1, 2}, 2},
      {"more classes of strides than a launch has", {2, 10, 11, 13}, {12, 10, 5, 3}, {4, 4}, {1, 2}, {2, 1}, 1},
      {"strides that skip elements", {1, 12, 9, 10}, {9, 12, 2, 1}, {3, 4}, {0, 1}, {1, 1}, 1},
      {"strides and dilations with a common factor", {1, 9, 9, 12}, {10, 9, 3, 2}, {2, 4}, {2, 3}, {4, 2}, 1},
      {"numbers of 64 bits", {2, 9, 4, 5}, {9, 9, 2, 2}, {int64_t{1} << 30, 1}, {0, 1}, {1, 1}, 1},
      {"few rows", {2, 4, 6, 5}, {6, 2, 3, 2}, {2, 1}, {1, 0}, {1, 1}, 2},
      {"a long sum of two elements", {1, 1, 70, 71}, {1, 1, 1, 2}, {1, 1}, {0, 0}, {1, 1}, 1},
      {"each channel alone", {2, 40, 9, 8}, {40, 1, 3, 3}, {1, 2}, {1, 1}, {1, 1}, 40},
      {"depth", {1, 10, 5, 6, 7}, {12, 10, 2, 3, 3}, {2, 2, 1}, {0, 1, 1}, {1, 1, 2}, 1},
  };
  return list;
}

/// The forms of a case in two and three dims of space.
struct Ops {
  Case one;
  std::string format;

  Tensors forward(const Tensors& t) const {
    if (t[0].dims().rank() == 4)
      return {conv2d(t[0], t[1], one.strides, one.paddings, "EXPLICIT", one.dilations, one.groups, format)};
    return {conv3d(t[0], t[1], one.strides, one.paddings, "EXPLICIT", one.groups, one.dilations, format)};
  }
  Tensors backward(const Tensors& t) const {
    if (t[0].dims().rank() == 4)
      return all_of(
          conv2d_grad(t[0], t[1], t[2], one.strides, one.paddings, "EXPLICIT", one.dilations, one.groups, format));
    return all_of(
        conv3d_grad(t[0], t[1], t[2], one.strides, one.paddings, "EXPLICIT", one.groups, one.dilations, format));
  }
  /// Of images like the result.
  Tensors transposed(const Tensors& t) const {
    if (t[0].dims().rank() == 4)
      return {conv2d_transpose(t[0], t[1], one.strides, one.paddings, {}, {}, "EXPLICIT", one.groups, one.dilations,
                               format)};
    return {
        conv3d_transpose(t[0], t[1], one.strides, one.paddings, {}, {}, "EXPLICIT", one.groups, one.dilations, format)};
  }
  Tensors transposed_backward(const Tensors& t) const {
    if (t[0].dims().rank() == 4)
      return all_of(conv2d_transpose_grad(t[0], t[1], t[2], one.strides, one.paddings, {}, {}, "EXPLICIT", one.groups,
                                          one.dilations, format));
    return all_of(conv3d_transpose_grad(t[0], t[1], t[2], one.strides, one.paddings, {}, {}, "EXPLICIT", one.groups,
                                        one.dilations, format));
  }
};

void check_case(Device device, const Case& one, DType dtype, bool last) {
  INFO(one.name << ", " << to_string(dtype) << (last ? ", channels last" : ""));
  const bool volume = one.input.rank() == 5;
  const Ops ops{one, volume ? (last ? "NDHWC" : "NCDHW") : (last ? "NHWC" : "NCHW")};
  const auto forward = [&](const Tensors& t) { return ops.forward(t); };
  const auto transposed = [&](const Tensors& t) { return ops.transposed(t); };
  const DenseTensor input = random_tensor(last ? channels_last(one.input) : one.input, dtype, 1),
                    filter = random_tensor(one.filter, dtype, 2), grad = like_result({input, filter}, forward, 3);
  compare_op(device, {input, filter}, forward);
  compare_op(device, {input, filter, grad}, [&](const Tensors& t) { return ops.backward(t); });
  if (one.strides[0] > 1000) return;  // images of that size
  compare_op(device, {grad, filter}, transposed);
  const DenseTensor images = like_result({grad, filter}, transposed, 4);
  compare_op(device, {grad, filter, images}, [&](const Tensors& t) { return ops.transposed_backward(t); });
}

}  // namespace

TEST_CASE("convolutions and their gradients are those of the host, for each of their kernels", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  for (const Case& one : cases()) {
    for (const bool last : {false, true}) check_case(*device, one, DType::float32, last);
  }
}

TEST_CASE("convolutions of halves are added up in float, and of doubles in double") {
  const auto device = cuda_device();
  if (!device) return;
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float64}) {
    check_case(*device, cases()[1], dtype, false);
    check_case(*device, cases()[3], dtype, true);
  }
}

TEST_CASE("convolutions by cuDNN, where it is found, and their gradients are those of the host") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  for (const bool last : {false, true}) {
    for (const Case& one : cases()) {
      if (one.input.numel() < 4000) check_case(*device, one, DType::float32, last);
    }
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float64})
      check_case(*device, cases()[1], dtype, last);
  }
}

TEST_CASE("each gradient of a convolution is computed alone") {
  const auto device = cuda_device();
  if (!device) return;
  const DenseTensor input = random_tensor({2, 3, 5, 6}, DType::float32, 1),
                    filter = random_tensor({4, 3, 2, 3}, DType::float32, 2),
                    grad = random_tensor({2, 4, 4, 4}, DType::float32, 3);
  for (const int64_t wanted : {1, 2}) {
    compare_op(*device, {input, filter, grad}, [&](const Tensors& t) {
      const auto [of_input, of_filter] =
          conv2d_grad(t[0], t[1], t[2], {1, 1}, {0, 0}, "EXPLICIT", {1, 1}, 1, "NCHW", wanted);
      return Tensors{wanted == 1 ? of_input : of_filter};
    });
  }
}

TEST_CASE("convolutions of sharded images fetch what their windows read on the device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  run_ranks(3, [&](Rank&) {
    const auto run = [&](Device at) {
      const auto input = [&](const Dims& dims, unsigned seed, const char* layout) {
        return distribute(Tensor(copy_to(at, random_tensor(dims, DType::float32, seed))),
                          DistSpec::parse(mesh, layout));
      };
      const Tensor x = input({2, 3, 10, 7}, 1, "-, -, p, -"), filter = input({4, 3, 3, 2}, 2, "-, -, -, -");
      const Tensor out = conv2d(x, filter, {2, 1}, {1, 0});
      const auto [x_grad, filter_grad] =
          conv2d_grad(x, filter, input(out.dims(), 3, "-, -, p, -"), {2, 1}, {1, 0}, "EXPLICIT", {1, 1}, 1, "NCHW");
      const Tensor up = conv2d_transpose(x, input({3, 2, 2, 2}, 4, "-, -, -, -"), {3, 2}, {1, 1});
      const Tensor skipped = conv2d_transpose(x, input({3, 2, 1, 2}, 5, "-, -, -, -"), {3, 2}, {1, 1});
      Tensors whole;
      for (const Tensor& each : {out, x_grad, filter_grad, up, skipped}) whole.push_back(full_tensor(each));
      return whole;
    };
    const Tensors actual = run(*device), expected = run(kCpu);
    for (size_t i = 0; i < actual.size(); ++i) {
      const std::string text = testing::difference(copy_to(kCpu, actual[i].get().value), expected[i].get().value);
      check(text.empty(), "result " + std::to_string(i) + ": " + text);
    }
  });
}

}  // namespace conv_test
