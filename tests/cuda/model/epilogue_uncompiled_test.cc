// Products of captured programs, whose epilogues need no compiler for loops.
#include "../epilogue_case.h"
#include "traffic.h"

namespace epilogue_uncompiled_test {

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

TEST_CASE("epilogues on the device: captured programs have them without a compiler for loops too") {
  const auto device = cuda_device();
  if (!device) return;
  kernel_table("matmul");  // loops are registered with kernels
  if (backend_of(*device).loops.compiles(device->index)) return WARN("skipped: another test has had a compiler");
  const auto check = [&](const program::Function& function, DType dtype, size_t fused_ops, size_t kernels) {
    FusedProgram program(function, on_device(*device, inputs_of(dtype)));
    CHECK(program.fused_ops() == fused_ops);
    Tensors out;
    CHECK(kernels_of(*device, [&] { out = program.run(); }) == kernels);
    require_close(copy_to(kCpu, out[0].get().value), expected_of(function, inputs_of(dtype))[0].get().value);
  };
  check(Following{}, DType::float32, 2, 0);
  check(Following{.relu = true}, DType::float32, 3, 1);  // the activation does not have our bits
  {
    const UnderPolicy fastest(AlgorithmPolicy::fastest);
    check(Following{.relu = true}, DType::bfloat16, 3, 0);
  }
  // Ops behind these are not part of the step, which would keep their buffers to its end.
  const auto longer = [](const Tensors& in) -> Tensors {
    return {tanh(abs(exp(relu(add(matmul(in[0], in[1]), in[2])))))};
  };
  check(longer, DType::float32, 3, 4);
  check([](const Tensors& in) -> Tensors { return {exp(abs(in[0]))}; }, DType::float32, 0, 2);
}

#endif

}  // namespace epilogue_uncompiled_test
