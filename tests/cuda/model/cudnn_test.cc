// What cuDNN computes.
#include <cudnn.h>

#include <optional>

#include "../image_case.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

using namespace shard;
using namespace shard::test;

namespace {

/// cuDNN is found while one lives.
struct WithCudnn {
  WithCudnn() { setenv("CUDA_HOST_CUDNN", "1", 1); }
  ~WithCudnn() { unsetenv("CUDA_HOST_CUDNN"); }
  WithCudnn(const WithCudnn&) = delete;
  WithCudnn& operator=(const WithCudnn&) = delete;
};

}  // namespace

TEST_CASE("cuDNN computes convolutions with equal paddings, and their gradients") {
  const auto device = cuda_device();
  if (!device) return;
  std::optional<WithCudnn> with_cudnn(std::in_place);
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
  with_cudnn.reset();
  CHECK(calls([&] { conv2d(images, filter, {1, 1}, {0, 0}, "EXPLICIT", {1, 1}, 2, "NCHW"); }) == 0);
}

TEST_CASE("cuDNN computes pooling of whole images by equal windows, and the gradients of means") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const auto tensor = [&](const Dims& dims, DType dtype) {
    return Tensor(copy_to(*device, random_tensor(dims, dtype, 1)));
  };
  const auto calls = [&](const auto& run) {
    const uint64_t before = cuda_host::poolings();
    run();
    return cuda_host::poolings() - before;
  };
  const Tensor x = tensor({2, 3, 9, 8}, DType::float32), half = tensor({2, 3, 9, 8}, DType::bfloat16);
  const auto pool = [](const Tensor& images, const char* type, const IntArray& paddings = {1, 0}, bool ceil = false,
                       bool adaptive = false) {
    return pool2d(images, {3, 2}, {2, 1}, paddings, ceil, true, "NCHW", type, false, adaptive);
  };
  for (const char* const type : {"max", "avg"}) CHECK(calls([&] { pool(x, type); }) == 1);
  CHECK(calls([&] {
          pool3d(tensor({1, 2, 4, 4, 5}, DType::float64), {2, 2, 2}, {2, 2, 2}, {0, 0, 0}, false, true, "NCDHW", "avg");
        }) == 1);
  CHECK(calls([&] { pool(half, "max"); }) == 1);
  CHECK(calls([&] { pool(half, "avg"); }) == 0);             // in what it adds up is not documented
  CHECK(calls([&] { pool(x, "avg", {1, 0, 0, 0}); }) == 0);  // paddings that differ
  CHECK(calls([&] {
          pool(tensor({1, 2, 8, 8}, DType::float32), "max", {0, 0}, true);
        }) == 0);                                                   // one more window than cuDNN makes
  CHECK(calls([&] { pool(x, "max", {0, 0}, false, true); }) == 0);  // adaptive windows
  const auto gradient = [](const Tensor& images, const char* type) {
    return pool2d_grad(images, pool2d(images, {3, 2}, {2, 1}, {1, 0}, false, true, "NCHW", type), {3, 2}, {2, 1},
                       {1, 0}, false, true, "NCHW", type, false, false);
  };
  CHECK(calls([&] { gradient(x, "avg"); }) == 2);
  CHECK(calls([&] { gradient(x, "max"); }) == 1);  // which of equal elements it takes is not documented
}

TEST_CASE(
    "cuDNN computes recurrent networks without lengths, all layers at once unless elements between them are dropped") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const int64_t time = 3, batch = 2, inputs = 4;
  const auto passes = [&](const char* mode, int64_t gates, int64_t hidden, float dropout, bool with_lengths,
                          bool trains) {
    const auto tensor = [&](const Dims& dims) {
      Tensor made(copy_to(*device, random_tensor(dims, DType::float32, 1)));
      return trains ? made.set_requires_grad(true) : made;
    };
    std::vector<Tensor> weights;
    for (const int64_t width : {inputs, hidden}) {
      weights.push_back(tensor({gates * hidden, width}));
      weights.push_back(tensor({gates * hidden, hidden}));
    }
    for (int i = 0; i < 4; ++i) weights.push_back(tensor({gates * hidden}));
    std::vector<Tensor> states(std::string(mode) == "LSTM" ? 2 : 1, tensor({2, batch, hidden}));
    const Tensor lengths = with_lengths ? to_device(Tensor::from_data<int64_t>({3, 1}, {2}), *device) : Tensor();
    const uint64_t before = cuda_host::recurrent_passes();
    const auto [out, mask, state] = rnn(tensor({time, batch, inputs}), states, weights, lengths, {}, dropout, false,
                                        static_cast<int>(inputs), static_cast<int>(hidden), 2, mode, 7, false);
    if (trains) sum(out).backward();
    return cuda_host::recurrent_passes() - before;
  };
  CHECK(passes("LSTM", 4, 5, 0, false, false) == 1);
  CHECK(passes("GRU", 3, 5, 0, false, false) == 1);
  CHECK(passes("RNN_TANH", 1, 5, 0, false, false) == 1);
  CHECK(passes("LSTM", 4, 5, 0.5f, false, false) == 2);
  CHECK(passes("LSTM", 4, 5, 0, false, true) == 4);      // the gradient runs the network again, then back in two parts
  CHECK(passes("RNN_RELU", 1, 5, 0, false, true) == 0);  // what becomes of NaN is not documented
  CHECK(passes("LSTM", 4, 5, 0, true, true) == 0);       // cuDNN reads lengths on the host
  CHECK(passes("LSTM", 4, 13, 0, false, true) == 0);     // a size that the model refuses
}

TEST_CASE("cuDNN adds up in any order under AlgorithmPolicy::fastest, and only then") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  run_ranks(1, [&](Rank& rank) {
    const Policies fastest{.algorithms = AlgorithmPolicy::fastest};
    const auto convolve = [](const Tensors& in) {
      const auto [images, filter] = conv2d_grad(in[0], in[1], conv2d(in[0], in[1]));
      return Tensors{images, filter};
    };
    const Tensors in{Tensor(copy_to(*device, random_tensor({2, 3, 5, 6}, DType::float32, 1))),
                     Tensor(copy_to(*device, random_tensor({4, 3, 3, 2}, DType::float32, 2)))};
    std::vector<DenseTensor> expected;
    for (const Tensor& result : convolve(in)) expected.push_back(copy_to(kCpu, result.get().value));
    const auto unordered = [&](const Policies& policies, const auto& run) {
      const PolicyScope scope(rank, policies);
      const uint64_t before = cuda_host::unordered_convolutions();
      const Tensors results = run();
      for (size_t i = 0; i < expected.size(); ++i)
        check(testing::difference(copy_to(kCpu, results[i].get().value), expected[i]).empty(), "the gradients");
      return cuda_host::unordered_convolutions() - before;
    };
    const program::Trace trace = program::trace(convolve, in);
    program::Executor graphs(trace.program, {in, {}});
    for (int run = 0; run < 3; ++run) {  // plans and graphs of both policies are kept from the first runs on
      const auto calls = [&] { return convolve(in); };
      const auto launch = [&] { return graphs.run({in, {}}); };
      check(unordered({}, calls) == 0 && unordered(fastest, calls) == 3, "calls");
      check(unordered({}, launch) == 0 && unordered(fastest, launch) == 3, "a program");
    }
    // The first run under each policy is not recorded: it sets up what its algorithms need.
    check(graphs.graphs().launches == 4 && graphs.graphs().recordings < 4, "graphs are launched again");
  });
}
