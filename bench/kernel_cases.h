// The cases of kernel_bench: a name, what draws the inputs, and the call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shard/shard.h"

namespace kernel_bench {

using namespace shard;

inline constexpr int64_t kRows = 4096, kColumns = 4096;  // 16M elements

/// Dtypes of cases, and the ends of their names.
inline std::vector<std::pair<DType, std::string>> float_dtypes() {
  return {{DType::float32, ""}, {DType::bfloat16, " bf16"}, {DType::float16, " f16"}};
}

inline Tensor draw(const Dims& dims, DType dtype = DType::float32, double low = -2, double high = 2) {
  const IntArray shape(dims);
  if (dtype == DType::int64) return randint(static_cast<int>(low), static_cast<int>(high), shape);
  return cast(uniform(shape, DType::float32, low, high), dtype);
}

using Inputs = std::vector<Tensor>;
struct Case {
  std::function<Inputs()> make;
  std::function<Tensor(Inputs&)> run;
  bool differentiable = true;
};
using Cases = std::map<std::string, Case>;

/// A function of tensors of these shapes and of one dtype.
template <class Run>
Case of(const Run& run, std::vector<Dims> shapes = {{kRows, kColumns}}, DType dtype = DType::float32, double low = -2,
        double high = 2) {
  return {[=] {
            Inputs inputs;
            for (const Dims& shape : shapes) inputs.push_back(draw(shape, dtype, low, high));
            return inputs;
          },
          run};
}
inline Case without_gradient(Case made) {
  made.differentiable = false;
  return made;
}
inline Case attention_case(const Dims& shape, DType dtype, bool causal) {
  const auto run = [causal](Inputs& in) {
    return std::get<0>(flash_attn(in[0], in[1], in[2], Tensor(), Tensor(), 0, causal));
  };
  return of(run, {shape, shape, shape}, dtype);
}

/// Functions, reductions, products, and what a GPT is made of.
void add_basic_cases(Cases& all);
/// Layers of images and sequences, further functions, and what selects, sorts and moves elements.
void add_layer_cases(Cases& all);
/// Cases that are large enough for a device, and too large for a processor.
void add_device_cases(Cases& all);

}  // namespace kernel_bench
