// Cases of functions, reductions, products, and of what a GPT is made of.
#include "kernel_cases.h"

#include <fmt/format.h>

namespace kernel_bench {

void add_basic_cases(Cases& all) {
  const Dims big{kRows, kColumns};
  const auto unary = [&](const std::string& name, auto run, double low = -2, double high = 2) {
    all[name] = of(run, {big}, DType::float32, low, high);
    all[name + " bf16"] = of(run, {big}, DType::bfloat16, low, high);
  };
  unary("relu", [](Inputs& in) { return relu(in[0]); });
  unary("exp", [](Inputs& in) { return exp(in[0]); });
  unary(
      "log", [](Inputs& in) { return log(in[0]); }, 0.1, 4);
  unary("sin", [](Inputs& in) { return sin(in[0]); });
  unary("cos", [](Inputs& in) { return cos(in[0]); });
  unary("tanh", [](Inputs& in) { return tanh(in[0]); });
  unary("sigmoid", [](Inputs& in) { return sigmoid(in[0]); });
  unary("silu", [](Inputs& in) { return silu(in[0]); });
  unary("gelu", [](Inputs& in) { return gelu(in[0]); });
  unary(
      "pow 1.7", [](Inputs& in) { return pow(in[0], 1.7); }, 0.1, 4);
  for (const auto& [dtype, end] : float_dtypes()) {
    all["add" + end] = of([](Inputs& in) { return add(in[0], in[1]); }, {big, big}, dtype);
    all["multiply by a row" + end] = of([](Inputs& in) { return multiply(in[0], in[1]); }, {big, {kColumns}}, dtype);
    all["divide" + end] = of([](Inputs& in) { return divide(in[0], in[1]); }, {big, big}, dtype, 0.5, 2);
    all["sum" + end] = of([](Inputs& in) { return sum(in[0]); }, {big}, dtype);
    all["sum dim 0" + end] = of([](Inputs& in) { return sum(in[0], {0}); }, {big}, dtype);
    all["sum dim 1" + end] = of([](Inputs& in) { return sum(in[0], {1}); }, {big}, dtype);
    all["sum dim 1 of 3" + end] = of([](Inputs& in) { return sum(in[0], {1}); }, {{256, 256, 256}}, dtype);
    all["mean dim 1" + end] = of([](Inputs& in) { return mean(in[0], {1}); }, {big}, dtype);
    all["amax dim 0" + end] = of([](Inputs& in) { return amax(in[0], {0}); }, {big}, dtype);
    all["amax dim 1" + end] = of([](Inputs& in) { return amax(in[0], {1}); }, {big}, dtype);
    all["softmax dim 0" + end] = of([](Inputs& in) { return softmax(in[0], 0); }, {big}, dtype);
    all["softmax dim 1" + end] = of([](Inputs& in) { return softmax(in[0], 1); }, {big}, dtype);
    all["log_softmax dim 1" + end] = of([](Inputs& in) { return log_softmax(in[0], 1); }, {big}, dtype);
    all["transpose" + end] = of([](Inputs& in) { return transpose(in[0], {1, 0}); }, {big}, dtype);
    all["transpose 0 2 1 3" + end] = of(
        [](Inputs& in) {
          return transpose(in[0], {0, 2, 1, 3});
        },
        {{16, 1024, 16, 64}}, dtype);
    all["concat" + end] = of([](Inputs& in) { return concat({in[0], in[1]}, 1); }, {big, big}, dtype);
    all["slice" + end] = of([](Inputs& in) { return slice(in[0], {1}, {64}, {4032}); }, {big}, dtype);
    all["cumsum dim 0" + end] = of([](Inputs& in) { return cumsum(in[0], 0); }, {big}, dtype);
    all["cumsum dim 1" + end] = of([](Inputs& in) { return cumsum(in[0], 1); }, {big}, dtype);
    all["layer_norm" + end] =
        of([](Inputs& in) { return layer_norm(in[0], in[1], in[2]); }, {{8192, 2048}, {2048}, {2048}}, dtype);
    all["rms_norm" + end] =
        of([](Inputs& in) { return std::get<0>(rms_norm(in[0], in[1])); }, {{8192, 2048}, {2048}}, dtype);
    all["dropout" + end] = of([](Inputs& in) { return dropout(in[0], Tensor(), 0.3f); }, {big}, dtype);
    for (const int64_t n : {64, 256, 1024, 2048}) {
      if (n == 2048 && dtype == DType::float16)
        continue;  // PyTorch needs minutes where the processor has no products of float16
      all[fmt::format("matmul {}{}", n, end)] =
          of([](Inputs& in) { return matmul(in[0], in[1]); }, {{n, n}, {n, n}}, dtype);
    }
    all["matmul 1024 transposed y" + end] =
        of([](Inputs& in) { return matmul(in[0], in[1], false, true); }, {{1024, 1024}, {1024, 1024}}, dtype);
    all["matmul row" + end] = of([](Inputs& in) { return matmul(in[0], in[1]); }, {{1, 4096}, {4096, 4096}}, dtype);
    all["linear + gelu" + end] =
        of([](Inputs& in) { return fused_gemm_epilogue(in[0], in[1], in[2], false, true, "gelu"); },
           {{2048, 1024}, {4096, 1024}, {4096}}, dtype);
    all["matmul batched" + end] =
        of([](Inputs& in) { return matmul(in[0], in[1]); }, {{64, 128, 64}, {64, 64, 128}}, dtype);
    for (const bool causal : {false, true}) {
      all[(causal ? "attention causal" : "attention") + end] = attention_case({4, 512, 8, 64}, dtype, causal);
    }
    all["cross_entropy" + end] = {[=] {
                                    return Inputs{draw({4096, 4096}, dtype), draw({4096, 1}, DType::int64, 0, 4096)};
                                  },
                                  [](Inputs& in) { return std::get<1>(cross_entropy_with_softmax(in[0], in[1])); }};
    all["gather" + end] = {[=] {
                             return Inputs{draw({65536, 256}, dtype), draw({65536}, DType::int64, 0, 65536)};
                           },
                           [](Inputs& in) { return gather(in[0], in[1]); }};
    all["embedding" + end] = {[=] {
                                return Inputs{draw({32768, 512}, dtype), draw({32768}, DType::int64, 0, 32768)};
                              },
                              [](Inputs& in) { return embedding(in[1], in[0]); }};
    all["scatter add" + end] = {
        [=] {
          return Inputs{draw({65536, 256}, dtype), draw({65536, 256}, dtype), draw({65536}, DType::int64, 0, 65536)};
        },
        [](Inputs& in) { return scatter(in[0], in[2], in[1], false); }, false};
  }
  all["batch_norm"] = {[] {
                         Inputs in{draw({32, 64, 64, 128}), draw({64}), draw({64}, DType::float32, 0.5, 1)};
                         in.push_back(zeros({64}));
                         in.push_back(ones({64}));
                         return in;
                       },
                       [](Inputs& in) { return std::get<0>(batch_norm(in[0], in[3], in[4], in[2], in[1])); }, false};
  all["where"] = {[=] {
                    return Inputs{draw(big), draw(big), cast(draw(big, DType::int64, 0, 2), DType::boolean)};
                  },
                  [](Inputs& in) { return where(in[2], in[0], in[1]); }};
  all["cast to bf16"] = of([](Inputs& in) { return cast(in[0], DType::bfloat16); });
  all["add int64"] =
      without_gradient(of([](Inputs& in) { return add(in[0], in[1]); }, {big, big}, DType::int64, 0, 99));
  all["argmax dim 1"] = without_gradient(of([](Inputs& in) { return argmax(in[0], 1); }));
  all["argmax dim 0"] = without_gradient(of([](Inputs& in) { return argmax(in[0], 0); }));
  all["nonzero"] = {[=] { return Inputs{cast(draw(big, DType::int64, 0, 2), DType::boolean)}; },
                    [](Inputs& in) { return nonzero(in[0]); }, false};
  all["gaussian"] = {[] { return Inputs(); }, [](Inputs&) { return gaussian({kRows, kColumns}); }, false};
  all["uniform"] = {[] { return Inputs(); }, [](Inputs&) { return uniform({kRows, kColumns}); }, false};
  all["randint"] = {[] { return Inputs(); }, [](Inputs&) { return randint(0, 1000, {kRows, kColumns}); }, false};
  all["adamw"] = {
      [=] {
        return Inputs{
            draw(big),      draw(big),       full({1}, 1e-3), zeros({kRows, kColumns}), zeros({kRows, kColumns}),
            full({1}, 0.9), full({1}, 0.999)};
      },
      [](Inputs& in) {
        Tensor none;
        adamw_(in[0], in[1], in[2], in[3], in[4], in[5], in[6], none, Tensor(), 0.9, 0.999, 1e-8, 1, 0.01, true);
        return in[0];
      },
      false};
  for (const int64_t n : {4, 64, 1024}) {
    all[fmt::format("add {}", n)] = of([](Inputs& in) { return add(in[0], in[1]); }, {{n}, {n}});
    all[fmt::format("sum {}", n)] = of([](Inputs& in) { return sum(in[0]); }, {{n}});
    all[fmt::format("softmax {}", n)] = of([](Inputs& in) { return softmax(in[0]); }, {{n}});
  }
}

}  // namespace kernel_bench
