// Products whose epilogues need no compiler for loops: those of composites, and those of captured programs.
#include "../epilogue_case.h"
#include "traffic.h"

namespace epilogue_calls_test {

#ifdef CUDA_HOST_INSTRUMENTED  // otherwise accesses are not logged

using namespace shard;
using namespace shard::test;

namespace {

/// How many kernels of ours run; products are cuBLASLt's.
size_t kernels_of(Device device, const std::function<void()>& work) {
  backend_of(device).synchronize(device.index);
  cuda_host::begin_log();
  work();
  backend_of(device).synchronize(device.index);
  return cuda_host::end_log().size();
}

Tensors inputs_of(DType dtype) {
  return {drawn({300, 40}, dtype, 1), drawn({40, 256}, dtype, 2), drawn({256}, dtype, 3)};
}

}  // namespace

TEST_CASE("epilogues on the device: composites add a bias, and activate 16-bit products, without a kernel of ours") {
  const auto device = cuda_device();
  if (!device) return;
  const auto layer = [](const char* activation) {
    return [activation](const Tensors& in) -> Tensors {
      return {fused_gemm_epilogue(in[0], in[1], in[2], false, false, activation)};
    };
  };
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const char* const activation : {"none", "relu", "gelu"}) {
      for (const AlgorithmPolicy policy : {AlgorithmPolicy::deterministic, AlgorithmPolicy::fastest}) {
        INFO(to_string(dtype) << ", " << activation << (policy == AlgorithmPolicy::fastest ? ", fastest" : ""));
        const UnderPolicy under(policy);
        const Tensors in = on_device(*device, inputs_of(dtype));
        Tensors out;
        const size_t kernels = kernels_of(*device, [&] { out = layer(activation)(in); });
        require_close(copy_to(kCpu, out[0].get().value),
                      expected_of(layer(activation), inputs_of(dtype))[0].get().value);
        const bool is_half = size_of(dtype) == 2, activates = activation != std::string_view("none");
        if (!activates || (is_half && policy == AlgorithmPolicy::fastest)) CHECK(kernels == 0);
        if (is_half && policy == AlgorithmPolicy::fastest) continue;  // rounded once
        if (is_half && !activates) continue;
        Tensor one_by_one = add(matmul(in[0], in[1]), in[2]);
        if (activation == std::string_view("relu")) one_by_one = relu(one_by_one);
        if (activation == std::string_view("gelu")) one_by_one = gelu(one_by_one, true);
        const DenseTensor got = copy_to(kCpu, out[0].get().value), want = copy_to(kCpu, one_by_one.get().value);
        CHECK(std::memcmp(got.raw(), want.raw(), want.meta().bytes()) == 0);
      }
    }
  }
}

TEST_CASE("epilogues on the device: composites whose calls are recorded, or that have no product") {
  const auto device = cuda_device();
  if (!device) return;
  const Tensors here = inputs_of(DType::float32), there = on_device(*device, here);
  const auto gradient = [](const Tensors& in) {
    const Tensor x = in[0].detach();
    x.set_requires_grad(true);
    sum(fused_gemm_epilogue(x, in[1], in[2], false, false, "gelu")).backward();
    return copy_to(kCpu, x.grad().get().value);
  };
  require_close(gradient(there), gradient(here));
  const auto activated = [](const Tensors& in) {
    const Tensor rows = matmul(in[0], in[1]);
    return copy_to(kCpu, fused_bias_act(rows, in[2], {}, {}, {}, "gelu").get().value);
  };
  require_close(activated(there), activated(here));
  // Errors leave the thread as it was.
  CHECK_THROWS_WITH(fused_gemm_epilogue(there[0], there[1], there[2], false, false, "tanh"),
                    Catch::Contains("activation is tanh"));
  CHECK_THROWS(fused_gemm_epilogue(there[0], there[1], here[2], false, false, "relu"));
  require_close(activated(there), activated(here));
}

TEST_CASE("epilogues on the device: captured programs have them without a compiler for loops too") {
  const auto device = cuda_device();
  if (!device) return;
  FusedProgram program(Following{}, on_device(*device, inputs_of(DType::float32)));
  CHECK(program.fused_ops() == 2);
  Tensors out;
  CHECK(kernels_of(*device, [&] { out = program.run(); }) == 0);
  require_close(copy_to(kCpu, out[0].get().value), expected_of(Following{}, inputs_of(DType::float32))[0].get().value);
}

#endif

}  // namespace epilogue_calls_test
