// Programs in which a bias and an activation follow a product, as they run on a device.
#pragma once

#include "loop_cases.h"
#include "shard/core/algorithm_policy.h"

namespace shard::test {

/// The policy of this thread while one lives.
class UnderPolicy {
 public:
  explicit UnderPolicy(AlgorithmPolicy policy) : policy_(policy) { this_thread.algorithms = &policy_; }
  ~UnderPolicy() { this_thread.algorithms = before_; }
  UnderPolicy(const UnderPolicy&) = delete;
  UnderPolicy& operator=(const UnderPolicy&) = delete;

 private:
  const AlgorithmPolicy policy_;
  const AlgorithmPolicy* const before_ = this_thread.algorithms;
};

/// What follows the product of the first two inputs; the third one is a bias.
struct Following {
  bool bias = true, relu = false, gelu = false;
  bool transposed = false;

  Tensors operator()(const Tensors& in) const {
    Tensor out = matmul(in[0], in[1], transposed, transposed);
    if (bias) out = add(out, in[2]);
    if (relu) out = shard::relu(out);
    if (gelu) out = shard::gelu(out, true);
    return {out};
  }
};

/// A captured function with fused loops, for these inputs.
class FusedProgram {
 public:
  FusedProgram(const program::Function& function, Tensors inputs)
      : inputs_(std::move(inputs)), program_(program::fuse_loops(program::trace(function, inputs_).program)),
        executor_(program_, {inputs_, {}}) {}
  Tensors run() { return executor_.run({inputs_, {}}); }
  size_t fused_ops() const { return executor_.fused_ops(); }

 private:
  const Tensors inputs_;
  const program::Program program_;
  program::Executor executor_;
};

inline Tensors on_device(Device device, const Tensors& inputs) {
  Tensors moved;
  for (const Tensor& input : inputs) moved.emplace_back(copy_to(device, input.get().value));
  return moved;
}

inline Tensor drawn(const Dims& dims, DType dtype, unsigned seed) { return Tensor(random_tensor(dims, dtype, seed)); }

/// The results on the CPU; those of 16 bits are computed in float32 and rounded once.
inline Tensors expected_of(const program::Function& function, const Tensors& inputs) {
  const DType dtype = inputs[0].dtype(), computed = size_of(dtype) == 2 ? DType::float32 : dtype;
  Tensors wide;
  for (const Tensor& input : inputs) wide.push_back(cast(input, computed));
  Tensors results;
  for (const Tensor& result : function(wide)) results.push_back(cast(result, dtype));
  return results;
}

/// Whether the fused program has the results of the CPU, the first and the second time it runs. Returns how many of its ops are fused.
inline size_t require_equal(Device device, const program::Function& function, const Tensors& inputs) {
  const Tensors expected = expected_of(function, inputs);
  FusedProgram program(function, on_device(device, inputs));
  for (int run = 0; run < 2; ++run) {
    const Tensors actual = program.run();
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      INFO("output " << i << " of run " << run);
      require_close(actual[i].get().value, expected[i].get().value);
    }
  }
  return program.fused_ops();
}

}  // namespace shard::test
