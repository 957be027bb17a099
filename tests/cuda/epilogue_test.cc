// Products with a bias and an activation on the device, in captured programs, against the CPU.
#include "epilogue_case.h"

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
TEST_CASE("epilogues on the device: products with a bias and an activation are those of the CPU") {
  const auto device = cuda_device();
  const RuntimeCompiler compiler;
  if (!device || !compiler.is_there(*device)) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const Factors& factors : kFactors) {
      for (Following following : kFollowing) {
        const bool activates = following.relu || following.gelu;
        if (activates && size_of(dtype) != 2) continue;
        INFO(to_string(factors.x) << " by " << to_string(factors.y) << " " << to_string(dtype) << ", bias "
                                  << following.bias << ", relu " << following.relu << ", gelu " << following.gelu);
        following.transposed = factors.transposed;
        CHECK(require_equal(*device, following, inputs_of(factors, dtype)) >= 2);
        // Those of 16 bits are rounded once, others have the bits of the ops one by one.
        if (size_of(dtype) != 2) fused_equally(following, on_device(*device, inputs_of(factors, dtype)));
      }
    }
  }
  // NaN and infinity stay what they are.
  const std::vector<float> special = {std::nanf(""), std::numeric_limits<float>::infinity(), -1, 1};
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Tensor bias = cast(Tensor::from_data(special, {4}), dtype);
    for (const Following& following : {Following{.relu = true}, Following{.gelu = true}})
      require_equal(*device, following, {drawn({3, 8}, dtype, 1), drawn({8, 4}, dtype, 2), bias});
  }
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
