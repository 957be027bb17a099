// Which convolutions cuDNN computes.
#include <cudnn.h>

#include "../image_case.h"
#include "shard/shard.h"

using namespace shard;
using namespace shard::test;

TEST_CASE("cuDNN computes convolutions with equal paddings, and their gradients") {
  const auto device = cuda_device();
  if (!device) return;
  setenv("CUDA_HOST_CUDNN", "1", 1);
  const auto tensor = [&](const Dims& dims) {
    return Tensor(copy_to(*device, random_tensor(dims, DType::float32, 1)));
  };
  const auto calls = [&](const auto& run) {
    const uint64_t before = cuda_host::convolutions();
    run();
    return cuda_host::convolutions() - before;
  };
  const Tensor images = tensor({2, 6, 7, 8}), filter = tensor({4, 3, 3, 2});
  CHECK(calls([&] { conv2d(images, filter, {2, 1}, {1, 0}, "EXPLICIT", {1, 2}, 2, "NCHW"); }) == 1);
  const Tensor out = conv2d(images, filter, {2, 1}, {1, 0}, "EXPLICIT", {1, 2}, 2, "NCHW");
  CHECK(calls([&] { conv2d_grad(images, filter, out, {2, 1}, {1, 0}, "EXPLICIT", {1, 2}, 2, "NCHW"); }) == 2);
  CHECK(calls([&] { conv2d_transpose(out, filter, {2, 1}, {1, 0}, {}, {}, "EXPLICIT", 2, {1, 2}, "NCHW"); }) == 1);
  CHECK(calls([&] { conv3d(tensor({1, 2, 4, 4, 4}), tensor({3, 2, 2, 2, 2})); }) == 1);
  CHECK(calls([&] { conv2d(images, filter, {1, 1}, {1, 2, 0, 0}, "EXPLICIT", {1, 1}, 2, "NCHW"); }) == 0);
  const Tensor last = tensor({2, 7, 8, 6});
  CHECK(calls([&] { conv2d(last, filter, {2, 1}, {1, 0}, "EXPLICIT", {1, 2}, 2, "NHWC"); }) == 1);
  const Tensor out_last = conv2d(last, filter, {2, 1}, {1, 0}, "EXPLICIT", {1, 2}, 2, "NHWC");
  CHECK(calls([&] { conv2d_grad(last, filter, out_last, {2, 1}, {1, 0}, "EXPLICIT", {1, 2}, 2, "NHWC"); }) == 2);
  unsetenv("CUDA_HOST_CUDNN");
  CHECK(calls([&] { conv2d(images, filter, {1, 1}, {0, 0}, "EXPLICIT", {1, 1}, 2, "NCHW"); }) == 0);
}
