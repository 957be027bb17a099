// Products with a bias and an activation on the device, in captured programs, against the CPU.
#include "epilogue_case.h"

namespace epilogue_test {

using namespace shard;
using namespace shard::test;

namespace {

struct Factors {
  Dims x, y;
  bool transposed = false;
};
const Factors kFactors[] = {{{5, 24}, {24, 16}},         {{24, 5}, {16, 24}, true}, {{24}, {24, 16}},
                            {{3, 5, 24}, {24, 16}},      {{3, 5, 24}, {3, 24, 16}}, {{3, 24, 5}, {3, 16, 24}, true},
                            {{2, 1, 5, 24}, {3, 24, 16}}};

const Following kFollowing[] = {
    {}, {.relu = true}, {.gelu = true}, {.bias = false, .relu = true}, {.bias = false, .gelu = true}};

Tensors inputs_of(const Factors& factors, DType dtype) {
  return {drawn(factors.x, dtype, 1), drawn(factors.y, dtype, 2), drawn({16}, dtype, 3)};
}

}  // namespace

// One test case: each has to find out whether there is a compiler, which takes the model a second.
TEST_CASE("epilogues on the device: products with a bias and an activation are those of the CPU", "[slow_in_asan]") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const Factors& factors : kFactors) {
      for (Following following : kFollowing) {
        const bool activates = following.relu || following.gelu, is_half = size_of(dtype) == 2;
        INFO(to_string(factors.x) << " by " << to_string(factors.y) << " " << to_string(dtype) << ", bias "
                                  << following.bias << ", relu " << following.relu << ", gelu " << following.gelu);
        following.transposed = factors.transposed;
        // Those of 16 bits are rounded once, others have the bits of the ops one by one.
        if (activates || !is_half) fused_equally(following, on_device(*device, inputs_of(factors, dtype)));
        const UnderPolicy fastest(AlgorithmPolicy::fastest);
        if (!activates || is_half) CHECK(require_equal(*device, following, inputs_of(factors, dtype)) >= 2);
      }
    }
  }
  // NaN stays NaN, and -infinity becomes -0 by gelu, unless a faster algorithm may make something else of them.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {std::nanf(""), kInfinity, -kInfinity, -1, 1};
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const Following& following : kFollowing) {
      const Tensors in = {cast(Tensor::from_data(special, {5, 1}), dtype),
                          cast(Tensor::from_data(std::vector<float>(8, 1), {1, 8}), dtype),
                          cast(Tensor::from_data(std::vector<float>(8, 0), {8}), dtype)};
      const std::vector<float> results =
          cast(Tensor(copy_to(kCpu, FusedProgram(following, on_device(*device, in)).run()[0].get().value)),
               DType::float32)
              .to_vector<float>();
      for (size_t i = 0; i < results.size(); ++i) {
        INFO(to_string(dtype) << ", relu " << following.relu << ", gelu " << following.gelu << ", element " << i);
        CHECK(std::isnan(results[i]) == (i < 8));
        if (i / 8 == 2 && following.gelu) CHECK((results[i] == 0 && std::signbit(results[i])));
      }
    }
  }
  const UnderPolicy fastest(AlgorithmPolicy::fastest);
  const Tensors inputs = inputs_of(kFactors[0], DType::bfloat16);
  const auto sum_too = [](const Tensors& in) -> Tensors {
    const Tensor sum = add(matmul(in[0], in[1]), in[2]);
    return {sum, relu(sum)};
  };
  require_equal(*device, sum_too, inputs);
  const auto in_place = [](const Tensors& in) -> Tensors {
    Tensor out = matmul(in[0], in[1]);
    return {relu_(add_(out, in[2]))};
  };
  require_equal(*device, in_place, inputs);
}

}  // namespace epilogue_test
