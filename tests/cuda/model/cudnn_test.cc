// What cuDNN computes.
#include <cudnn.h>

#include <optional>
#include <thread>

#include "../image_case.h"
#include "../with_cudnn.h"
#include "shard/core/cuda/cuda_call.cuh"
#include "shard/kernels/cuda/rnn_cudnn.h"
#include "shard/program/capture/function.h"
#include "shard/shard.h"
#include "support/mesh_run.h"

namespace cudnn_test {

using namespace shard;
using namespace shard::test;

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

TEST_CASE("cuDNN computes means of whole images by equal windows, and their gradients") {
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
  CHECK(calls([&] { pool(x, "avg"); }) == 1);
  CHECK(calls([&] {
          pool3d(tensor({1, 2, 4, 4, 5}, DType::float64), {2, 2, 2}, {2, 2, 2}, {0, 0, 0}, false, true, "NCDHW", "avg");
        }) == 1);
  CHECK(calls([&] { pool(x, "max"); }) == 0);                // it begins from the lowest finite number
  CHECK(calls([&] { pool(half, "avg"); }) == 0);             // in what it adds up is not documented
  CHECK(calls([&] { pool(x, "avg", {1, 0, 0, 0}); }) == 0);  // paddings that differ
  CHECK(calls([&] {
          pool(tensor({1, 2, 8, 8}, DType::float32), "avg", {0, 0}, true);
        }) == 0);                                                   // one more window than cuDNN makes
  CHECK(calls([&] { pool(x, "avg", {0, 0}, false, true); }) == 0);  // adaptive windows
  const auto gradient = [](const Tensor& images, const char* type) {
    return pool2d_grad(images, pool2d(images, {3, 2}, {2, 1}, {1, 0}, false, true, "NCHW", type), {3, 2}, {2, 1},
                       {1, 0}, false, true, "NCHW", type, false, false);
  };
  CHECK(calls([&] { gradient(x, "avg"); }) == 2);
  CHECK(calls([&] { gradient(x, "max"); }) == 0);  // which of equal elements it takes is not documented
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

TEST_CASE("cuDNN computes no recurrent network of which it would index more than int has") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const cuda::DeviceScope scope(device->index);
  const auto layers = [](meta::RnnMode mode, int64_t time) {
    return cuda::find_cudnn_rnn({mode, DType::float32, time, 64, 1, 8, 2, 1}) != nullptr;
  };
  CHECK(layers(meta::RnnMode::lstm, (1 << 19) - 1));
  CHECK_FALSE(layers(meta::RnnMode::lstm, 1 << 19));  // 2^31 sums of inputs, of a result of 2^29 elements
  CHECK(layers(meta::RnnMode::tanh, 1 << 19));
}

namespace {

/// The calls that cuDNN computes in two runs by a new thread, in the first of which a function of cuDNN fails. Results are those of the host.
template <class Op>
std::pair<uint64_t, uint64_t> calls_after(const char* function, cudnnStatus_t status, Device device,
                                          const std::vector<DenseTensor>& inputs, const Op& op) {
  const std::vector<DenseTensor> expected = results_on(kCpu, inputs, op);
  std::string difference;
  const auto calls = [&] {
    const uint64_t before = cuda_host::convolutions() + cuda_host::recurrent_passes();
    const std::vector<DenseTensor> actual = results_on(device, inputs, op);
    for (size_t i = 0; i < actual.size(); ++i) difference += testing::difference(actual[i], expected[i]);
    return cuda_host::convolutions() + cuda_host::recurrent_passes() - before;
  };
  std::pair<uint64_t, uint64_t> of_both;
  std::thread([&] {
    cuda_host::fail_cudnn(function, status);
    of_both.first = calls();
    of_both.second = calls();
  }).join();
  CHECK(difference == "");
  return of_both;
}

Tensors convolve(const Tensors& t) { return {conv2d(t[0], t[1])}; }

/// A recurrent network and its gradients.
Tensors recur(const Tensors& t) {
  const Tensors states = {t[1]}, weights = {t[2], t[3], t[4], t[5]};
  const auto [out, mask, state, reserve] =
      rnn_intermediate(t[0], states, weights, {}, {}, 0, false, 4, 5, 1, "RNN_TANH", 7, false);
  auto [x_grad, state_grads, weight_grads] =
      rnn_grad(t[0], states, weights, {}, mask, reserve, out, state, 0, false, 4, 5, 1, "RNN_TANH", 7, false);
  return {out, state[0], x_grad, state_grads[0], weight_grads[0], weight_grads[1], weight_grads[2]};
}

}  // namespace

TEST_CASE("what cuDNN fails to compute is computed by other kernels, and is tried again unless it is not supported") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const auto tensor = [](const Dims& dims) { return random_tensor(dims, DType::float64, 1); };
  using Calls = std::pair<uint64_t, uint64_t>;
  const auto of_convolution = [&](const char* function, cudnnStatus_t status) {
    return calls_after(function, status, *device, {tensor({2, 3, 5, 6}), tensor({4, 3, 3, 2})}, convolve);
  };
  CHECK(of_convolution("cudnnCreate", CUDNN_STATUS_NOT_INITIALIZED) == Calls(0, 1));
  for (const char* const function : {"cudnnGetConvolutionForwardAlgorithm_v7", "cudnnConvolutionForward"}) {
    CHECK(of_convolution(function, CUDNN_STATUS_EXECUTION_FAILED) == Calls(0, 1));
    CHECK(of_convolution(function, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) == Calls(0, 1));
    CHECK(of_convolution(function, CUDNN_STATUS_NOT_SUPPORTED) == Calls(0, 0));
  }
  const auto of_network = [&](const char* function, cudnnStatus_t status) {
    return calls_after(function, status, *device,
                       {tensor({3, 2, 4}), tensor({1, 2, 5}), tensor({5, 4}), tensor({5, 5}), tensor({5}), tensor({5})},
                       recur);
  };
  // A forward pass, and what the gradient runs: one more, and back in two parts.
  CHECK(of_network("cudnnGetRNNWeightParams", CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) == Calls(3, 4));
  CHECK(of_network("cudnnGetRNNWeightParams", CUDNN_STATUS_NOT_SUPPORTED) == Calls(0, 0));
  CHECK(of_network("cudnnRNNForward", CUDNN_STATUS_EXECUTION_FAILED) == Calls(3, 4));
  CHECK(of_network("cudnnRNNBackwardWeights_v8", CUDNN_STATUS_EXECUTION_FAILED) == Calls(3, 4));
}

TEST_CASE("what cuDNN fails to compute on a stream that has failed is an error") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const cuda::DeviceScope scope(device->index);
  const Tensors in = {Tensor(copy_to(*device, random_tensor({2, 3, 5, 6}, DType::float32, 1))),
                      Tensor(copy_to(*device, random_tensor({4, 3, 3, 2}, DType::float32, 2)))};
  convolve(in);
  REQUIRE(cudaStreamSynchronize(cuda::stream()) == cudaSuccess);
  cuda_host::submit(cuda::stream(), [] { throw cuda_host::Finding("a kernel has failed"); });
  cudaStreamQuery(cuda::stream());  // runs it
  cuda_host::fail_cudnn("cudnnConvolutionForward", CUDNN_STATUS_EXECUTION_FAILED);
  CHECK_THROWS_WITH(convolve(in), Catch::Contains("a convolution of cuDNN failed: status 5000"));
  CHECK(cudaGetLastError() == cudaSuccess);
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

}  // namespace cudnn_test
