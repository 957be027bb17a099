// Cases of layers of images and sequences, of further functions, and of what selects, sorts and moves elements.
#include <fmt/format.h>

#include <memory>

#include <shard/program.h>

#include "kernel_cases.h"

namespace kernel_bench {
namespace {

/// 100 calls on few elements, of which a device does less than the host.
std::vector<Tensor> hundred_calls(const Inputs& in) {
  Tensor x = in[0];
  for (int i = 0; i < 25; ++i) x = relu(add(multiply(x, in[1]), subtract(in[1], x)));
  return {x};
}

void add_functions(Cases& all) {
  const auto unary = [&](const std::string& name, Tensor (*run)(const Tensor&), double low = -2, double high = 2) {
    all[name] = of([run](Inputs& in) { return run(in[0]); }, {{kRows, kColumns}}, DType::float32, low, high);
  };
  unary("erf", [](const Tensor& x) { return erf(x); });
  unary("expm1", [](const Tensor& x) { return expm1(x); });
  unary(
      "log1p", [](const Tensor& x) { return log1p(x); }, -0.5, 4);
  unary(
      "tan", [](const Tensor& x) { return tan(x); }, -1, 1);
  unary(
      "asin", [](const Tensor& x) { return asin(x); }, -1, 1);
  unary("atan", [](const Tensor& x) { return atan(x); });
  unary("sinh", [](const Tensor& x) { return sinh(x); });
  unary("floor", [](const Tensor& x) { return floor(x); });
  unary(
      "reciprocal", [](const Tensor& x) { return reciprocal(x); }, 0.5, 2);
  unary(
      "sqrt", [](const Tensor& x) { return sqrt(x); }, 0.1, 4);
  unary("softplus", [](const Tensor& x) { return softplus(x); });
  unary("mish", [](const Tensor& x) { return mish(x, 20); });
  unary("hardswish", [](const Tensor& x) { return hardswish(x); });
  unary("elu", [](const Tensor& x) { return elu(x); });
  unary("leaky_relu", [](const Tensor& x) { return leaky_relu(x); });
  unary(
      "lgamma", [](const Tensor& x) { return lgamma(x); }, 0.5, 4);
  unary(
      "digamma", [](const Tensor& x) { return digamma(x); }, 0.5, 4);
  all["atan2"] = of([](Inputs& in) { return atan2(in[0], in[1]); }, {{kRows, kColumns}, {kRows, kColumns}});
  all["lerp"] = of([](Inputs& in) { return lerp(in[0], in[1], in[2]); }, {{kRows, kColumns}, {kRows, kColumns}, {1}});
  all["bias + relu"] =
      of([](Inputs& in) { return fused_bias_act(in[0], in[1], {}, {}, {}, "relu"); }, {{kRows, kColumns}, {kColumns}});
  all["logsumexp"] = of([](Inputs& in) { return logsumexp(in[0], {1}, false, false); });
  all["cumprod"] = of([](Inputs& in) { return cumprod(in[0], 1); }, {{kRows, kColumns}}, DType::float32, 0.99, 1.01);
  all["p_norm dim 1"] = of([](Inputs& in) { return p_norm(in[0], 2, 1); });
}

void add_image_layers(Cases& all) {
  for (const auto& [dtype, end] : float_dtypes()) {
    all["conv2d 3x3, 64 channels" + end] = of(
        [](Inputs& in) {
          return conv2d(in[0], in[1], {1, 1}, {1, 1});
        },
        {{8, 64, 56, 56}, {64, 64, 3, 3}}, dtype);
    all["conv2d 1x1, 256 channels" + end] =
        of([](Inputs& in) { return conv2d(in[0], in[1]); }, {{8, 256, 28, 28}, {256, 256, 1, 1}}, dtype);
  }
  all["conv2d 7x7, stride 2"] = of(
      [](Inputs& in) {
        return conv2d(in[0], in[1], {2, 2}, {3, 3});
      },
      {{8, 3, 224, 224}, {64, 3, 7, 7}});
  all["depthwise_conv2d 3x3"] = of(
      [](Inputs& in) {
        return depthwise_conv2d(in[0], in[1], {1, 1}, {1, 1}, "EXPLICIT", 128);
      },
      {{8, 128, 56, 56}, {128, 1, 3, 3}});
  all["conv2d_transpose 4x4, stride 2"] = of(
      [](Inputs& in) {
        return conv2d_transpose(in[0], in[1], {2, 2}, {1, 1});
      },
      {{8, 64, 28, 28}, {64, 64, 4, 4}});
  all["max pool 3x3, stride 2"] = of(
      [](Inputs& in) {
        return pool2d(in[0], {3, 3}, {2, 2}, {1, 1}, false, true, "NCHW", "max");
      },
      {{8, 64, 112, 112}});
  all["average pool 2x2"] = of(
      [](Inputs& in) {
        return pool2d(in[0], {2, 2}, {2, 2}, {0, 0}, false, true, "NCHW", "avg");
      },
      {{8, 64, 112, 112}});
  all["group_norm"] =
      of([](Inputs& in) { return group_norm(in[0], in[1], in[2], 1e-5f, 8); }, {{8, 64, 112, 112}, {64}, {64}});
  all["instance_norm"] =
      of([](Inputs& in) { return instance_norm(in[0], in[1], in[2]); }, {{8, 64, 112, 112}, {64}, {64}});
  all["bilinear_interp"] =
      of([](Inputs& in) { return bilinear_interp(in[0], {}, {}, {}, "NCHW", 0, 112, 112, {}, "bilinear", false, 0); },
         {{8, 64, 56, 56}});
}

void add_sequences(Cases& all) {
  all["lstm, 64 steps"] = of(
      [](Inputs& in) {
        return std::get<0>(
            rnn(in[0], {in[1], in[2]}, {in[3], in[4], in[5], in[6]}, {}, {}, 0, false, 256, 256, 1, "LSTM"));
      },
      {{64, 32, 256}, {1, 32, 256}, {1, 32, 256}, {1024, 256}, {1024, 256}, {1024}, {1024}}, DType::float32, -0.1, 0.1);
}

void add_moves(Cases& all) {
  all["topk 10 of 4096"] = of([](Inputs& in) { return std::get<0>(topk(in[0], 10)); });
  all["argsort"] = without_gradient(of([](Inputs& in) { return std::get<1>(argsort(in[0])); }));
  all["flip dim 1"] = of([](Inputs& in) { return flip(in[0], {1}); });
  all["roll dim 1"] = of([](Inputs& in) { return roll(in[0], {100}, {1}); });
  all["pad"] = of([](Inputs& in) { return pad(in[0], {1, 2, 3, 4}, 0.0); });
  all["take_along_axis"] = {
      [] {
        return Inputs{draw({kRows, kColumns}), draw({kRows, kColumns}, DType::int64, 0, kColumns)};
      },
      [](Inputs& in) { return take_along_axis(in[0], in[1], 1); }};
  all["index_select"] = {[] {
                           return Inputs{draw({kRows, kColumns}), draw({kColumns}, DType::int64, 0, kColumns)};
                         },
                         [](Inputs& in) { return index_select(in[0], in[1], 1); }};
  all["unfold"] = of(
      [](Inputs& in) {
        return unfold(in[0], {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1});
      },
      {{8, 16, 112, 112}});
  // Symmetric, and far from singular.
  const auto of_matrix = [&](const std::string& name, std::function<Tensor(const Tensor&)> run) {
    all[name] = {[=] {
                   const Tensor x = draw({256, 256});
                   return Inputs{add(matmul(x, x, false, true), multiply(eye(256, 256), full({1}, 64.0)))};
                 },
                 [run](Inputs& in) { return run(in[0]); }};
  };
  of_matrix("cholesky 256", [](const Tensor& x) { return cholesky(x); });
  of_matrix("inverse 256", [](const Tensor& x) { return inverse(x); });
}

}  // namespace

void add_layer_cases(Cases& all) {
  add_functions(all);
  add_image_layers(all);
  add_sequences(all);
  add_moves(all);
}

void add_device_cases(Cases& all) {
  const std::vector<Dims> small = {{1024}, {1024}};
  all["100 calls"] = without_gradient(of([](Inputs& in) { return hundred_calls(in)[0]; }, small));
  const auto program = std::make_shared<CapturedFunction>(hundred_calls, CaptureOptions());
  all["100 calls captured"] = without_gradient(of([=](Inputs& in) { return (*program)(in)[0]; }, small));
  for (const auto& [dtype, end] : float_dtypes()) {
    all["matmul 8192" + end] = of([](Inputs& in) { return matmul(in[0], in[1]); }, {{8192, 8192}, {8192, 8192}}, dtype);
    for (const bool causal : {false, true}) {
      all[(causal ? "attention of 4096 causal" : "attention of 4096") + end] =
          attention_case({4, 4096, 16, 128}, dtype, causal);
    }
    all["add of 256M" + end] =
        of([](Inputs& in) { return add(in[0], in[1]); }, {{16384, 16384}, {16384, 16384}}, dtype);
    all["softmax of 256M" + end] = of([](Inputs& in) { return softmax(in[0], 1); }, {{65536, 4096}}, dtype);
  }
}

}  // namespace kernel_bench
