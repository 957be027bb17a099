// Recurrent networks on a device: with dropout between layers, whose mask has the bits of the CPU's, and lengths that are wrong.
#include "image_case.h"
#include "shard/shard.h"
#include "with_cudnn.h"

namespace rnn_test {

using namespace shard;
using namespace shard::test;

namespace {

struct Run {
  std::vector<Tensor> outputs;    // out, the mask, the states
  std::vector<Tensor> gradients;  // of x, the states before, and the weights
};

struct Sizes {
  int64_t time = 5, batch = 3, inputs = 4, hidden = 6;
  DType dtype = DType::float64;
};

/// A network of two layers of two directions.
Run run(const std::string& mode, int64_t gates, Device device, float dropout, const Tensor& lengths,
        const Sizes& sizes = {}) {
  const auto [time, batch, inputs, hidden, dtype] = sizes;
  int number = 0;
  std::vector<Tensor> leaves;
  const auto leaf = [&](const Dims& dims) {
    const DenseTensor values = random_tensor(dims, sizes.dtype, ++number);
    leaves.push_back(to_device(Tensor(values), device).set_requires_grad(true));
    return leaves.back();
  };
  const Tensor x = leaf({time, batch, inputs});
  std::vector<Tensor> states, weights;
  for (int i = 0; i < (mode == "LSTM" ? 2 : 1); ++i) states.push_back(leaf({4, batch, hidden}));
  for (int cell = 0; cell < 4; ++cell) {
    weights.push_back(leaf({gates * hidden, cell < 2 ? inputs : 2 * hidden}));
    weights.push_back(leaf({gates * hidden, hidden}));
  }
  for (int cell = 0; cell < 8; ++cell) weights.push_back(leaf({gates * hidden}));
  auto [out, mask, state] = rnn(x, states, weights, lengths.defined() ? to_device(lengths, device) : lengths, {},
                                dropout, true, inputs, static_cast<int>(hidden), 2, mode, 7, false);
  Tensor loss = sum(multiply(out, out));
  for (const Tensor& each : state) loss = add(loss, sum(multiply(each, each)));
  loss.backward();
  Run result{{out, mask}, {}};
  result.outputs.insert(result.outputs.end(), state.begin(), state.end());
  for (const Tensor& each : leaves) result.gradients.push_back(each.grad());
  return result;
}

void require_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("tensor " << i);
    // exp and tanh of the CPU's kernels are exact to some last bits.
    const auto values = [](const Tensor& x) { return cast(to_device(x, kCpu), DType::float64).to_vector<double>(); };
    const std::vector<double> a = values(actual[i]), b = values(expected[i]);
    REQUIRE(a.size() == b.size());
    for (size_t k = 0; k < a.size(); ++k) REQUIRE(std::abs(a[k] - b[k]) <= 1e-12 * (1 + std::abs(b[k])));
  }
}

}  // namespace

TEST_CASE("recurrent networks with dropout and lengths have the values and gradients of the CPU on a device") {
  const auto device = cuda_device();
  if (!device) return;
  for (const auto& [mode, gates] :
       std::vector<std::pair<std::string, int64_t>>{{"LSTM", 4}, {"GRU", 3}, {"RNN_TANH", 1}, {"RNN_RELU", 1}}) {
    for (const float dropout : {0.0f, 0.5f, 1.0f}) {
      for (const Tensor& lengths : {Tensor(), Tensor::from_data<int64_t>({5, 0, 2}, {3})}) {
        INFO(mode << ", dropout " << dropout << (lengths.defined() ? ", lengths" : ""));
        const Run expected = run(mode, gates, kCpu, dropout, lengths),
                  actual = run(mode, gates, *device, dropout, lengths);
        require_same(actual.outputs, expected.outputs);
        require_same(actual.gradients, expected.gradients);
      }
    }
  }
}

TEST_CASE("recurrent networks by cuDNN, where it is found, have the values and gradients of the CPU") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  for (const auto& [mode, gates] :
       std::vector<std::pair<std::string, int64_t>>{{"LSTM", 4}, {"GRU", 3}, {"RNN_TANH", 1}}) {
    for (const float dropout : {0.0f, 0.5f, 1.0f}) {
      for (const int64_t hidden : {6, 13}) {  // cuDNN of the model refuses 13
        if (hidden == 13 && dropout == 1.0f) continue;
        INFO(mode << ", dropout " << dropout << ", " << hidden << " hidden");
        const Run expected = run(mode, gates, kCpu, dropout, {}, {.hidden = hidden}),
                  actual = run(mode, gates, *device, dropout, {}, {.hidden = hidden});
        require_same(actual.outputs, expected.outputs);
        require_same(actual.gradients, expected.gradients);
      }
    }
  }
}

TEST_CASE("recurrent networks by cuDNN, where it is found, have the same bits each time") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
#if __has_include("cudnn_model.h")  // small on the model, whose loops are slow
  const Sizes sizes{.dtype = DType::float32};
#else
  const Sizes sizes{48, 32, 128, 256, DType::float32};
#endif
  const auto results = [&] {
    const Run all = run("LSTM", 4, *device, 0, {}, sizes);
    std::vector<DenseTensor> values;
    for (const auto* const tensors : {&all.outputs, &all.gradients}) {
      for (const Tensor& each : *tensors) values.push_back(copy_to(kCpu, each.get().value));
    }
    return values;
  };
  const std::vector<DenseTensor> first = results();
  for (int again = 0; again < 19; ++again) {
    const std::vector<DenseTensor> values = results();
    for (size_t i = 0; i < first.size(); ++i) {
      INFO("run " << again << ", tensor " << i);
      REQUIRE(have_equal_bits(values[i], first[i]));
    }
  }
}

TEST_CASE("recurrent networks by cuDNN, where it is found, take tensors at any address") {
  const auto device = cuda_device();
  if (!device) return;
  const WithCudnn with_cudnn;
  const int time = 3, batch = 2, inputs = 4, hidden = 5;
  for (const DType dtype : {DType::float32, DType::float64}) {
    INFO("dtype " << int(dtype));
    const auto results = [&](Device at) {
      unsigned number = 0;
      // One element behind the start of an allocation.
      const auto tensor = [&](const Dims& dims) {
        const DenseTensor moved = copy_to(at, random_tensor({dims.numel() + 1}, dtype, ++number));
        return Tensor(DenseTensor(moved.storage(), {dims, dtype}, size_of(dtype)));
      };
      const Tensor x = tensor({time, batch, inputs}), out_grad = tensor({time, batch, hidden}),
                   h = tensor({1, batch, hidden}), h_grad = tensor({1, batch, hidden});
      const Tensors weights = {tensor({3 * hidden, inputs}), tensor({3 * hidden, hidden}), tensor({3 * hidden}),
                               tensor({3 * hidden})};
      const auto [out, mask, states, reserve] =
          rnn_intermediate(x, {h}, weights, {}, {}, 0, false, inputs, hidden, 1, "GRU", 7, false);
      const auto [x_grad, state_grads, weight_grads] = rnn_grad(x, {h}, weights, {}, mask, reserve, out_grad, {h_grad},
                                                                0, false, inputs, hidden, 1, "GRU", 7, false);
      std::vector<DenseTensor> all;
      for (const Tensor& each : {out, states[0], x_grad, state_grads[0], weight_grads[0], weight_grads[1]})
        all.push_back(copy_to(kCpu, each.get().value));
      return all;
    };
    const std::vector<DenseTensor> expected = results(kCpu), actual = results(*device);
    for (size_t i = 0; i < expected.size(); ++i) require_close(actual[i], expected[i]);
  }
}

TEST_CASE("a length beyond the steps is the error of the CPU on a device") {
  const auto device = cuda_device();
  if (!device) return;
  const auto error_of = [](Device at) {
    try {
      copy_to(kCpu, run("GRU", 3, at, 0, Tensor::from_data<int64_t>({5, 6, 2}, {3})).outputs[0].get().value);
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string("none");
  };
  CHECK_THAT(error_of(kCpu), Catch::Contains("sequence_length is 6 at element 1, but must be from 0 to 5"));
  CHECK(error_of(*device) == error_of(kCpu));
}

}  // namespace rnn_test
