// Programs whose elementwise ops run as fused loops on a device, against the same ops one by one.
#pragma once

#include <bit>
#include <set>
#include <string_view>

#include "cuda_case.h"
#include "runtime_compiler.h"
#include "shard/program/capture/function.h"
#include "shard/program/ir/op_table.h"
#include "shard/shard.h"
#include "shard/testing/op_cases.h"

namespace shard::test {

using Tensors = std::vector<Tensor>;

/// Numbers of each tensor; all NaNs are alike.
inline std::vector<std::vector<uint64_t>> numbers_of(const Tensors& tensors) {
  std::vector<std::vector<uint64_t>> all;
  for (const Tensor& tensor : tensors) {
    std::vector<uint64_t>& bits = all.emplace_back();
    for (const double value : cast(Tensor(copy_to(kCpu, tensor.get().value)), DType::float64).to_vector<double>())
      bits.push_back(std::bit_cast<uint64_t>(std::isnan(value) ? std::nan("") : value));
  }
  return all;
}

struct LoopOutcome {
  size_t fused;
  std::vector<std::vector<uint64_t>> outputs, inputs;
};

/// Runs the captured function on copies of `inputs`: once, recorded as a graph, and by that graph again.
inline LoopOutcome run_captured(const program::Function& function, const Tensors& inputs, bool fuse) {
  Tensors copies;
  for (const Tensor& input : inputs) copies.push_back(assign(input));
  const program::Trace trace = program::trace(function, copies);
  const program::Program program = fuse ? program::fuse_loops(trace.program) : trace.program;
  program::Executor executor(program, {copies, {}});
  executor.run({copies, {}});
  executor.run({copies, {}});
  const Tensors outputs = executor.run({copies, {}});
  return {executor.fused_ops(), numbers_of(outputs), numbers_of(copies)};
}

/// The number of ops that run in loops; checks that their results are those of the ops one by one.
inline size_t fused_equally(const program::Function& function, const Tensors& inputs) {
  const LoopOutcome loops = run_captured(function, inputs, true), alone = run_captured(function, inputs, false);
  CHECK(alone.fused == 0);
  CHECK(loops.inputs == alone.inputs);
  REQUIRE(loops.outputs.size() == alone.outputs.size());
  for (size_t i = 0; i < loops.outputs.size(); ++i) {
    INFO("output " << i);
    CHECK(loops.outputs[i] == alone.outputs[i]);
  }
  return loops.fused;
}

/// A call of every pointwise op, in one of its dtypes, on values that other ops of a loop have made before it.
class PointwiseCalls {
 public:
  /// The first op is called in the dtype of its cases that `number` counts.
  explicit PointwiseCalls(Device device, size_t number = 0) {
    for (const testing::OpCase& each : testing::op_cases()) {
      const OpEntry* const entry = OpTable::instance().find(each.op);
      if (entry == nullptr || !entry->op->pointwise || !ops_.insert(entry->op->name).second) continue;
      testing::Draw draw(7, each.dtypes[number++ % each.dtypes.size()], {6, 22});
      calls_.push_back({each.make(draw), inputs_.size()});
      for (const testing::CaseInput& input : calls_.back().call.inputs) {
        std::vector<float> values(static_cast<size_t>(input.dims.numel()));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(input.low) + 0.01f * static_cast<float>(i % 97);
        inputs_.emplace_back(copy_to(device, cast(Tensor::from_data(values, input.dims), input.dtype).get().value));
      }
    }
  }
  const Tensors& inputs() const { return inputs_; }
  const std::set<std::string_view>& ops() const { return ops_; }

  Tensors operator()(const Tensors& in) const {
    Tensors outputs;
    for (const auto& [call, first] : calls_) {
      Tensors arguments;
      for (size_t i = first; i < first + call.inputs.size(); ++i)
        arguments.push_back(in[i].dtype() == DType::boolean ? logical_and(in[i], in[i]) : scale(in[i], 1.0));
      for (const Tensor& out : call.run(arguments)) outputs.push_back(out);
    }
    return outputs;
  }

 private:
  struct Call {
    testing::CaseCall call;
    size_t first;  // input
  };
  std::vector<Call> calls_;
  Tensors inputs_;
  std::set<std::string_view> ops_;
};

}  // namespace shard::test
